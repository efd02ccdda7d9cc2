// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <ATen/Parallel.h>

#include "draftsmith/ops/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "draftsmith/ops/cpu/cached_attention.cpp"
// clang-format off: this header comes first and compiles the file once per instruction set.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on
#include <hwy/contrib/math/math-inl.h>

#include "draftsmith/ops/cpu/storage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace draftsmith::ops::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class T>
typename Stored<T>::Compute
dot(const typename Stored<T>::Compute* left, const T* right, int64_t width) {
  using C = typename Stored<T>::Compute;
  const hn::ScalableTag<C> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t end = width / lanes * lanes;
  auto sums = hn::Zero(d);
  for (int64_t e = 0; e < end; e += lanes)
    sums = hn::MulAdd(hn::LoadU(d, left + e), load_wide(d, right + e), sums);
  C sum = hn::GetLane(hn::SumOfLanes(d, sums));
  for (int64_t e = end; e < width; ++e)
    sum += left[e] * load_scalar(right + e);
  return sum;
}

/// Overwrites scores with exp(score - max) and returns their sum.
template <class C>
C exponentiate(C* scores, int64_t count) {
  const hn::ScalableTag<C> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t end = count / lanes * lanes;
  C max = scores[0];
  for (int64_t j = 1; j < count; ++j)
    max = std::max(max, scores[j]);
  auto sums = hn::Zero(d);
  for (int64_t j = 0; j < end; j += lanes) {
    const auto e = hn::Exp(d, hn::Sub(hn::LoadU(d, scores + j), hn::Set(d, max)));
    hn::StoreU(e, d, scores + j);
    sums = hn::Add(sums, e);
  }
  C sum = hn::GetLane(hn::SumOfLanes(d, sums));
  for (int64_t j = end; j < count; ++j) {
    scores[j] = std::exp(scores[j] - max);
    sum += scores[j];
  }
  return sum;
}

template <class T>
void add_scaled(
    typename Stored<T>::Compute scale,
    const T* from,
    int64_t width,
    typename Stored<T>::Compute* to) {
  using C = typename Stored<T>::Compute;
  const hn::ScalableTag<C> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t end = width / lanes * lanes;
  for (int64_t e = 0; e < end; e += lanes)
    hn::StoreU(
        hn::MulAdd(hn::Set(d, scale), load_wide(d, from + e), hn::LoadU(d, to + e)), d, to + e);
  for (int64_t e = end; e < width; ++e)
    to[e] += scale * load_scalar(from + e);
}

/// All queries of row b that use key head g. Each key and value is read once for all of them.
template <class T>
void attend_head(const CachedAttentionParams& params, int64_t b, int64_t g) {
  using C = typename Stored<T>::Compute;
  const int64_t E = params.E;
  const int64_t repeat = params.H / params.G;
  const int64_t rows = params.T * repeat;  // row r is token r / repeat
  const int64_t keys = params.lengths[b] + params.T;
  const int64_t stride = params.G * E;
  const T* key = static_cast<const T*>(params.key) + (b * params.capacity * params.G + g) * E;
  const T* value = static_cast<const T*>(params.value) + (b * params.capacity * params.G + g) * E;
  const auto offset = [&](int64_t r) {
    return ((b * params.T + r / repeat) * params.H + g * repeat + r % repeat) * E;
  };
  const int64_t length = params.lengths[b];
  const auto visible = [&](int64_t r) {
    const int64_t t = r / repeat;
    return length + 1 + (params.depths == nullptr ? t : params.depths[b * params.T + t]);
  };
  // The place of key j among those that row r sees, or -1: the scores of a tree's node lie as
  // they would if its path were decoded alone.
  const auto place = [&](int64_t r, int64_t j) {
    if (j < length) return j;
    const int64_t t = r / repeat;
    const int64_t node = j - length;
    if (params.ancestors == nullptr) return node <= t ? j : -1;
    return params.ancestors[(b * params.T + t) * params.T + node] != 0
               ? length + params.depths[b * params.T + node]
               : -1;
  };

  std::vector<C> queries(static_cast<size_t>(rows * E));
  std::vector<C> scores(static_cast<size_t>(rows * keys));
  std::vector<C> sums(static_cast<size_t>(rows * E), 0);
  const C scale = C{1} / std::sqrt(static_cast<C>(E));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t e = 0; e < E; ++e)
      queries[static_cast<size_t>(r * E + e)] =
          scale * load_scalar(static_cast<const T*>(params.query) + offset(r) + e);
  for (int64_t j = 0; j < keys; ++j)
    for (int64_t r = 0; r < rows; ++r)
      if (const int64_t slot = place(r, j); slot >= 0)
        scores[static_cast<size_t>(r * keys + slot)] =
            dot<T>(queries.data() + r * E, key + j * stride, E);
  for (int64_t r = 0; r < rows; ++r) {
    C* row = scores.data() + r * keys;
    const C inverse = C{1} / exponentiate(row, visible(r));
    for (int64_t j = 0; j < visible(r); ++j)
      row[j] *= inverse;
  }
  for (int64_t j = 0; j < keys; ++j)
    for (int64_t r = 0; r < rows; ++r)
      if (const int64_t slot = place(r, j); slot >= 0)
        add_scaled<T>(
            scores[static_cast<size_t>(r * keys + slot)], value + j * stride, E,
            sums.data() + r * E);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t e = 0; e < E; ++e)
      store_scalar<T>(
          sums[static_cast<size_t>(r * E + e)], static_cast<T*>(params.out) + offset(r) + e);
}

void run_attend_head(const CachedAttentionParams& params, int64_t b, int64_t g) {
  switch (params.storage) {
    case Storage::kBF16:
      return attend_head<BF16>(params, b, g);
    case Storage::kF32:
      return attend_head<float>(params, b, g);
    case Storage::kF64:
      return attend_head<double>(params, b, g);
  }
}

}  // namespace draftsmith::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace draftsmith::ops {

HWY_EXPORT(run_attend_head);

void compute_cached_attention(const CachedAttentionParams& params) {
  at::parallel_for(0, params.B * params.G, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      HWY_DYNAMIC_DISPATCH(run_attend_head)(params, i / params.G, i % params.G);
  });
}

}  // namespace draftsmith::ops
#endif  // HWY_ONCE
