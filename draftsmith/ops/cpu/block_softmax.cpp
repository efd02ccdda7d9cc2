// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "draftsmith/ops/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "draftsmith/ops/cpu/block_softmax.cpp"
// clang-format off: this header comes first and compiles the file once per instruction set.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on
#include "draftsmith/ops/cpu/loops-inl.h"
#include "draftsmith/ops/cpu/storage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace draftsmith::ops::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

struct Range {
  int64_t lo, hi;
};

std::array<Range, 2> ranges_of(const BlockRows& rows, int64_t r) {
  const int64_t* at = rows.ranges + 4 * r;
  return {{{at[0], at[1]}, {at[2], at[3]}}};
}

/// Calls `vector(d, i)` for whole vectors of [lo, hi) and `scalar(i)` for what is left.
template <class D, class OnVector, class OnScalar>
HWY_INLINE void for_range(D d, Range range, const OnVector& on_vector, const OnScalar& on_scalar) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = range.lo;
  for (; i + lanes <= range.hi; i += lanes)
    on_vector(i);
  for (; i < range.hi; ++i)
    on_scalar(i);
}

template <class T>
void clear_outside(T* row, const std::array<Range, 2>& ranges, int64_t width) {
  std::fill(row, row + ranges[0].lo, T{});
  std::fill(row + ranges[0].hi, row + ranges[1].lo, T{});
  std::fill(row + ranges[1].hi, row + width, T{});
}

template <class T>
void softmax_row(const BlockSoftmaxParams& params, int64_t r) {
  using C = typename Stored<T>::Compute;
  const hn::ScalableTag<C> d;
  T* row = static_cast<T*>(params.scores) + r * params.rows.width;
  const auto ranges = ranges_of(params.rows, r);
  const C scale = static_cast<C>(params.rows.scale);

  auto tops = hn::Set(d, hwy::LowestValue<C>());
  C top = hwy::LowestValue<C>();
  for (const Range& range : ranges) {
    for_range(
        d, range, [&](int64_t i) { tops = hn::Max(tops, load_wide(d, row + i)); },
        [&](int64_t i) { top = std::max(top, load_scalar(row + i)); });
  }
  top = std::max(top, hn::GetLane(hn::MaxOfLanes(d, tops)));

  auto sums = hn::Zero(d);
  C sum = 0;
  const auto scales = hn::Set(d, scale);
  const auto shift = hn::Set(d, top * scale);
  for (const Range& range : ranges) {
    for_range(
        d, range,
        [&](int64_t i) {
          sums = hn::Add(sums, hn::Exp(d, hn::MulSub(load_wide(d, row + i), scales, shift)));
        },
        [&](int64_t i) { sum += std::exp(load_scalar(row + i) * scale - top * scale); });
  }
  sum += hn::GetLane(hn::SumOfLanes(d, sums));
  const C log_sum = top * scale + std::log(sum);
  params.log_sum[r] = static_cast<double>(log_sum);

  const auto log_sums = hn::Set(d, log_sum);
  for (const Range& range : ranges) {
    for_range(
        d, range,
        [&](int64_t i) {
          store_narrow(d, hn::Exp(d, hn::MulSub(load_wide(d, row + i), scales, log_sums)), row + i);
        },
        [&](int64_t i) {
          store_scalar<T>(std::exp(load_scalar(row + i) * scale - log_sum), row + i);
        });
  }
  clear_outside(row, ranges, params.rows.width);
}

template <class T>
void gradient_row(const BlockSoftmaxGradientParams& params, int64_t r) {
  using C = typename Stored<T>::Compute;
  const hn::ScalableTag<C> d;
  T* row = static_cast<T*>(params.scores) + r * params.rows.width;
  T* gradient = static_cast<T*>(params.gradient) + r * params.rows.width;
  const auto ranges = ranges_of(params.rows, r);
  const C scale = static_cast<C>(params.rows.scale);
  const C log_sum = static_cast<C>(params.log_sum[r]);
  const C delta = static_cast<C>(params.delta[r]);
  const auto scales = hn::Set(d, scale);
  const auto log_sums = hn::Set(d, log_sum);
  const auto deltas = hn::Set(d, delta);
  for (const Range& range : ranges) {
    for_range(
        d, range,
        [&](int64_t i) {
          const auto p = hn::Exp(d, hn::MulSub(load_wide(d, row + i), scales, log_sums));
          const auto from_weight = hn::Sub(load_wide(d, gradient + i), deltas);
          store_narrow(d, p, row + i);
          store_narrow(d, hn::Mul(hn::Mul(p, scales), from_weight), gradient + i);
        },
        [&](int64_t i) {
          const C p = std::exp(load_scalar(row + i) * scale - log_sum);
          const C from_weight = load_scalar(gradient + i) - delta;
          store_scalar<T>(p, row + i);
          store_scalar<T>(p * scale * from_weight, gradient + i);
        });
  }
  clear_outside(row, ranges, params.rows.width);
  clear_outside(gradient, ranges, params.rows.width);
}

template <class T>
void add_typed(const AddToSumsParams& params) {
  using C = typename Stored<T>::Compute;
  const T* values = static_cast<const T*>(params.values);
  C* sums = static_cast<C*>(params.sums);
  for_each_vector<C>(0, params.count, [&](auto d, int64_t i) {
    hn::StoreU(hn::Add(hn::LoadU(d, sums + i), load_wide(d, values + i)), d, sums + i);
  });
}

template <class T>
void run_typed_softmax(const BlockSoftmaxParams& params) {
  for (int64_t r = 0; r < params.rows.rows; ++r)
    softmax_row<T>(params, r);
}
template <class T>
void run_typed_gradient(const BlockSoftmaxGradientParams& params) {
  for (int64_t r = 0; r < params.rows.rows; ++r)
    gradient_row<T>(params, r);
}

void run_softmax(const BlockSoftmaxParams& params) {
  switch (params.rows.storage) {
    case Storage::kBF16:
      return run_typed_softmax<BF16>(params);
    case Storage::kF32:
      return run_typed_softmax<float>(params);
    case Storage::kF64:
      return run_typed_softmax<double>(params);
  }
}

void run_gradient(const BlockSoftmaxGradientParams& params) {
  switch (params.rows.storage) {
    case Storage::kBF16:
      return run_typed_gradient<BF16>(params);
    case Storage::kF32:
      return run_typed_gradient<float>(params);
    case Storage::kF64:
      return run_typed_gradient<double>(params);
  }
}

void run_add(const AddToSumsParams& params) {
  switch (params.storage) {
    case Storage::kBF16:
      return add_typed<BF16>(params);
    case Storage::kF32:
      return add_typed<float>(params);
    case Storage::kF64:
      return add_typed<double>(params);
  }
}

}  // namespace draftsmith::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace draftsmith::ops {

HWY_EXPORT(run_softmax);
HWY_EXPORT(run_gradient);
HWY_EXPORT(run_add);

void compute_block_softmax(const BlockSoftmaxParams& params) {
  HWY_DYNAMIC_DISPATCH(run_softmax)(params);
}
void compute_block_softmax_gradient(const BlockSoftmaxGradientParams& params) {
  HWY_DYNAMIC_DISPATCH(run_gradient)(params);
}
void add_to_sums(const AddToSumsParams& params) { HWY_DYNAMIC_DISPATCH(run_add)(params); }

}  // namespace draftsmith::ops
#endif  // HWY_ONCE
