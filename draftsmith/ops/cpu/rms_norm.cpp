// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <ATen/Parallel.h>

#include "draftsmith/ops/cpu/tasks.h"
#include "draftsmith/ops/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "draftsmith/ops/cpu/rms_norm.cpp"
// clang-format off: this header comes first and compiles the file once per instruction set.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "draftsmith/ops/cpu/loops-inl.h"
#include "draftsmith/ops/cpu/storage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace draftsmith::ops::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// `value` as an element of T holds it.
template <class T, class C = typename Stored<T>::Compute>
C round_scalar(C value) {
  T stored;
  store_scalar<T>(value, &stored);
  return load_scalar(&stored);
}

template <class T>
void rms_norm_row(const RmsNormParams& params, int64_t r) {
  using C = typename Stored<T>::Compute;
  const hn::ScalableTag<C> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t end = params.width / lanes * lanes;
  const T* x = static_cast<const T*>(params.x) + r * params.width;
  const T* weight = static_cast<const T*>(params.weight);
  T* out = static_cast<T*>(params.out) + r * params.width;
  auto squares = hn::Zero(d);
  for (int64_t i = 0; i < end; i += lanes) {
    const auto value = load_wide(d, x + i);
    squares = hn::MulAdd(value, value, squares);
  }
  C sum = hn::GetLane(hn::SumOfLanes(d, squares));
  for (int64_t i = end; i < params.width; ++i)
    sum += load_scalar(x + i) * load_scalar(x + i);
  const C scale = C{1} / std::sqrt(sum / static_cast<C>(params.width) + static_cast<C>(params.eps));
  if (params.scale != nullptr) params.scale[r] = static_cast<double>(scale);
  const T* gate =
      params.gate == nullptr ? nullptr : static_cast<const T*>(params.gate) + r * params.width;
  for_each_vector<C>(0, params.width, [&](auto tag, int64_t i) HWY_ATTR {
    const auto normed = hn::Mul(load_wide(tag, x + i), hn::Set(tag, scale));
    const auto weights = load_wide(tag, weight + i);
    if (params.is_zero_centred) {
      store_narrow(tag, hn::MulAdd(normed, weights, normed), out + i);
      return;
    }
    // The normed value is rounded before the weight multiplies it, as the models do.
    auto value = hn::Mul(round_to<T>(tag, normed), weights);
    if (gate != nullptr) {
      const auto gates = load_wide(tag, gate + i);
      value = hn::Mul(round_to<T>(tag, value), hn::Mul(gates, sigmoid_of(tag, gates)));
    }
    store_narrow(tag, value, out + i);
  });
}

/// Gradient of one row; adds its part of the weight's gradient to `weight_sum` [width].
template <class T>
void rms_norm_gradient_row(
    const RmsNormGradientParams& params,
    int64_t r,
    typename Stored<T>::Compute* weight_sum) {
  using C = typename Stored<T>::Compute;
  const hn::ScalableTag<C> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t width = params.width;
  const int64_t end = width / lanes * lanes;
  const T* x = static_cast<const T*>(params.x) + r * width;
  const T* g = static_cast<const T*>(params.out_gradient) + r * width;
  const T* weight = static_cast<const T*>(params.weight);
  T* out = static_cast<T*>(params.x_gradient) + r * width;
  const C scale = static_cast<C>(params.scale[r]);
  const auto scales = hn::Set(d, scale);
  auto dots = hn::Zero(d);  // of the normed row and its gradient
  for (int64_t i = 0; i < end; i += lanes) {
    const auto normed = hn::Mul(load_wide(d, x + i), scales);
    const auto gradient = load_wide(d, g + i);
    dots = hn::MulAdd(hn::Mul(gradient, load_wide(d, weight + i)), normed, dots);
    hn::StoreU(
        hn::MulAdd(gradient, round_to<T>(d, normed), hn::LoadU(d, weight_sum + i)), d,
        weight_sum + i);
  }
  C dot = hn::GetLane(hn::SumOfLanes(d, dots));
  for (int64_t i = end; i < width; ++i) {
    const C normed = load_scalar(x + i) * scale;
    dot += load_scalar(g + i) * load_scalar(weight + i) * normed;
    weight_sum[i] += load_scalar(g + i) * round_scalar<T>(normed);
  }
  const C mean = dot / static_cast<C>(width);
  const auto means = hn::Set(d, mean);
  for (int64_t i = 0; i < end; i += lanes) {
    const auto normed = hn::Mul(load_wide(d, x + i), scales);
    const auto inner = hn::Mul(load_wide(d, g + i), load_wide(d, weight + i));
    store_narrow(d, hn::Mul(scales, hn::NegMulAdd(normed, means, inner)), out + i);
  }
  for (int64_t i = end; i < width; ++i) {
    const C inner = load_scalar(g + i) * load_scalar(weight + i);
    store_scalar<T>(scale * (inner - load_scalar(x + i) * scale * mean), out + i);
  }
}

template <class T>
void rms_norm_gradient_rows(
    const RmsNormGradientParams& params,
    int64_t begin,
    int64_t end,
    double* weight_sum) {
  std::vector<typename Stored<T>::Compute> sum(static_cast<size_t>(params.width), 0);
  for (int64_t r = begin; r < end; ++r)
    rms_norm_gradient_row<T>(params, r, sum.data());
  std::copy(sum.begin(), sum.end(), weight_sum);
}

void run_rms_norm_row(const RmsNormParams& params, int64_t r) {
  switch (params.storage) {
    case Storage::kBF16:
      return rms_norm_row<BF16>(params, r);
    case Storage::kF32:
      return rms_norm_row<float>(params, r);
    case Storage::kF64:
      return rms_norm_row<double>(params, r);
  }
}

void run_rms_norm_gradient_rows(
    const RmsNormGradientParams& params,
    int64_t begin,
    int64_t end,
    double* weight_sum) {
  switch (params.storage) {
    case Storage::kBF16:
      return rms_norm_gradient_rows<BF16>(params, begin, end, weight_sum);
    case Storage::kF32:
      return rms_norm_gradient_rows<float>(params, begin, end, weight_sum);
    case Storage::kF64:
      return rms_norm_gradient_rows<double>(params, begin, end, weight_sum);
  }
}

}  // namespace draftsmith::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace draftsmith::ops {

HWY_EXPORT(run_rms_norm_row);
HWY_EXPORT(run_rms_norm_gradient_rows);

namespace {
constexpr int64_t kRowsPerSum = 64;  // fixes the order of the sum over rows
}  // namespace

void compute_rms_norm(const RmsNormParams& params) {
  at::parallel_for(0, params.rows, rows_per_task(params.width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      HWY_DYNAMIC_DISPATCH(run_rms_norm_row)(params, r);
  });
}

void compute_rms_norm_gradient(const RmsNormGradientParams& params) {
  const int64_t sums = (params.rows + kRowsPerSum - 1) / kRowsPerSum;
  std::vector<double> partial(static_cast<size_t>(sums * params.width));
  at::parallel_for(0, sums, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      HWY_DYNAMIC_DISPATCH(run_rms_norm_gradient_rows)
      (params, i * kRowsPerSum, std::min(params.rows, (i + 1) * kRowsPerSum),
       partial.data() + i * params.width);
    }
  });
  std::fill_n(params.weight_gradient, params.width, 0.0);
  for (int64_t i = 0; i < sums; ++i)
    for (int64_t j = 0; j < params.width; ++j)
      params.weight_gradient[j] += partial[static_cast<size_t>(i * params.width + j)];
}

}  // namespace draftsmith::ops
#endif  // HWY_ONCE
