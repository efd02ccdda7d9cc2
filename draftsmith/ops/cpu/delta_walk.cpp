// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <ATen/Parallel.h>

#include "draftsmith/ops/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "draftsmith/ops/cpu/delta_walk.cpp"
// clang-format off: this header comes first and compiles the file once per instruction set.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "draftsmith/ops/cpu/loops-inl.h"
#include "draftsmith/ops/cpu/storage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace draftsmith::ops::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Widens `x` and divides it by its norm; the sum runs in index order, whatever the vectors.
template <class T, class C>
void load_normed(const T* x, int64_t width, C scale, C* out) {
  C sum = 0;
  for (int64_t i = 0; i < width; ++i) {
    out[i] = load_scalar(x + i);
    sum += out[i] * out[i];
  }
  scale /= std::sqrt(sum + static_cast<C>(1e-6));
  for (int64_t i = 0; i < width; ++i)
    out[i] *= scale;
}

/// One token: `to` = the state after it, from the state `from` before it (may be the same).
template <class C>
struct DeltaStep {
  const C* query;  // [Ek] normed and scaled
  const C* key;    // [Ek] normed
  const C* value;  // [Ev]
  C keep;          // exp(decay)
  C beta;
  int64_t Ek, Ev;
  C* out;  // [Ev]

  /// The columns of a state are independent. Several vectors of them go side by side, because
  /// one sum alone waits for itself; a column's bits do not depend on how many.
  template <int kVectors, class D>
  HWY_INLINE void run_columns(D d, int64_t e, const C* from, C* to) const {
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    hn::Vec<D> recalled[kVectors];
    for (int n = 0; n < kVectors; ++n)
      recalled[n] = hn::Zero(d);
    for (int64_t i = 0; i < Ek; ++i) {
      for (int n = 0; n < kVectors; ++n) {
        const int64_t place = i * Ev + e + n * lanes;
        const auto kept = hn::Mul(hn::LoadU(d, from + place), hn::Set(d, keep));
        hn::StoreU(kept, d, to + place);
        recalled[n] = hn::MulAdd(kept, hn::Set(d, key[i]), recalled[n]);
      }
    }
    hn::Vec<D> written[kVectors];
    hn::Vec<D> read[kVectors];
    for (int n = 0; n < kVectors; ++n) {
      const auto missing = hn::Sub(hn::LoadU(d, value + e + n * lanes), recalled[n]);
      written[n] = hn::Mul(hn::Set(d, beta), missing);
      read[n] = hn::Zero(d);
    }
    for (int64_t i = 0; i < Ek; ++i) {
      for (int n = 0; n < kVectors; ++n) {
        const int64_t place = i * Ev + e + n * lanes;
        const auto next = hn::MulAdd(written[n], hn::Set(d, key[i]), hn::LoadU(d, to + place));
        hn::StoreU(next, d, to + place);
        read[n] = hn::MulAdd(next, hn::Set(d, query[i]), read[n]);
      }
    }
    for (int n = 0; n < kVectors; ++n)
      hn::StoreU(read[n], d, out + e + n * lanes);
  }

  void operator()(const C* from, C* to) const {
    constexpr int kVectors = 4;
    const hn::ScalableTag<C> d;
    const int64_t step = kVectors * static_cast<int64_t>(hn::Lanes(d));
    int64_t e = 0;
    for (; e + step <= Ev; e += step)
      run_columns<kVectors>(d, e, from, to);
    for_each_vector<C>(e, Ev, [&](auto tag, int64_t column) HWY_ATTR {
      run_columns<1>(tag, column, from, to);
    });
  }
};

/// All tokens of value head h of row b.
template <class T>
void walk_head(const DeltaWalkParams& params, int64_t b, int64_t h) {
  using C = typename Stored<T>::Compute;
  const int64_t Ek = params.Ek;
  const int64_t Ev = params.Ev;
  const int64_t key_width = params.Hk * Ek;
  const int64_t width = 2 * key_width + params.Hv * Ev;
  const int64_t key_head = h / (params.Hv / params.Hk);
  C* root = static_cast<C*>(params.state) + (b * params.Hv + h) * Ek * Ev;
  std::vector<C> scratch(static_cast<size_t>(2 * Ek + 2 * Ev));
  std::vector<std::vector<C>> levels;  // states after the nodes of the current path
  C* query = scratch.data();
  C* key = query + Ek;
  C* value = key + Ek;
  C* out = value + Ev;
  for (int64_t i = 0; i < params.counts[b]; ++i) {
    const int64_t first = b * params.T;
    const int64_t node = first + (params.order == nullptr ? i : params.order[first + i]);
    const T* mixed = static_cast<const T*>(params.mixed) + node * width;
    load_normed(mixed + key_head * Ek, Ek, C{1} / std::sqrt(static_cast<C>(Ek)), query);
    load_normed(mixed + key_width + key_head * Ek, Ek, C{1}, key);
    for (int64_t e = 0; e < Ev; ++e)
      value[e] = load_scalar(mixed + 2 * key_width + h * Ev + e);
    const C* from = root;
    C* to = root;
    if (params.order != nullptr) {
      const auto depth = static_cast<size_t>(params.depths[node]);
      if (levels.size() <= depth) levels.emplace_back(static_cast<size_t>(Ek * Ev));
      if (depth > 0) from = levels[depth - 1].data();
      to = levels[depth].data();
    }
    const DeltaStep<C> step{
        query,
        key,
        value,
        std::exp(static_cast<const C*>(params.decay)[node * params.Hv + h]),
        static_cast<const C*>(params.beta)[node * params.Hv + h],
        Ek,
        Ev,
        out};
    step(from, to);
    T* result = static_cast<T*>(params.out) + (node * params.Hv + h) * Ev;
    for (int64_t e = 0; e < Ev; ++e)
      store_scalar<T>(out[e], result + e);
  }
}

void run_walk_head(const DeltaWalkParams& params, int64_t b, int64_t h) {
  switch (params.storage) {
    case Storage::kBF16:
      return walk_head<BF16>(params, b, h);
    case Storage::kF32:
      return walk_head<float>(params, b, h);
    case Storage::kF64:
      return walk_head<double>(params, b, h);
  }
}

}  // namespace draftsmith::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace draftsmith::ops {

HWY_EXPORT(run_walk_head);

void compute_delta_walk(const DeltaWalkParams& params) {
  at::parallel_for(0, params.B * params.Hv, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      HWY_DYNAMIC_DISPATCH(run_walk_head)(params, i / params.Hv, i % params.Hv);
  });
}

}  // namespace draftsmith::ops
#endif  // HWY_ONCE
