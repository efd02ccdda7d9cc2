// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <vector>

#include <ATen/Parallel.h>

#include "draftsmith/ops/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "draftsmith/ops/cpu/cached_attention.cpp"
// clang-format off: this header comes first and compiles the file once per instruction set.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "draftsmith/ops/cpu/loops-inl.h"
#include "draftsmith/ops/cpu/storage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace draftsmith::ops::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Scores of one query and kKeys keys: rows[0 .. kKeys - 1] of a matrix whose rows lie `stride`
/// apart. Every score has one sum over e, so its bits do not depend on the keys beside it.
template <int kKeys, class T>
HWY_INLINE void score_keys(
    const typename Stored<T>::Compute* query,  // [width]
    const T* keys,
    int64_t stride,
    const int64_t* rows,
    int64_t width,
    typename Stored<T>::Compute* scores) {
  using C = typename Stored<T>::Compute;
  const hn::ScalableTag<C> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t end = width / lanes * lanes;
  hn::Vec<decltype(d)> sums[kKeys];
  for (int k = 0; k < kKeys; ++k)
    sums[k] = hn::Zero(d);
  for (int64_t e = 0; e < end; e += lanes) {
    const auto part = hn::LoadU(d, query + e);
    for (int k = 0; k < kKeys; ++k)
      sums[k] = hn::MulAdd(part, load_wide(d, keys + rows[k] * stride + e), sums[k]);
  }
  for (int k = 0; k < kKeys; ++k) {
    C sum = hn::GetLane(hn::SumOfLanes(d, sums[k]));
    for (int64_t e = end; e < width; ++e)
      sum += query[e] * load_scalar(keys + rows[k] * stride + e);
    scores[k] = sum;
  }
}

/// Overwrites scores with exp(score - max) and returns their sum.
template <class C>
C exponentiate(C* scores, int64_t count) {
  const hn::ScalableTag<C> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t end = count / lanes * lanes;
  auto maxima = hn::Set(d, scores[0]);
  for (int64_t j = 0; j < end; j += lanes)
    maxima = hn::Max(maxima, hn::LoadU(d, scores + j));
  C max = hn::GetLane(hn::MaxOfLanes(d, maxima));
  for (int64_t j = end; j < count; ++j)
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

/// Elements [e, e + kVectors vectors) of the sum of values weighted by scores, in the order of
/// `rows`.
template <int kVectors, class T, class D>
HWY_INLINE void sum_values(
    D d,
    const hn::TFromD<D>* scores,
    const T* values,
    int64_t stride,
    const std::vector<int64_t>& rows,
    int64_t e,
    T* out) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  hn::Vec<D> sums[kVectors];
  for (int n = 0; n < kVectors; ++n)
    sums[n] = hn::Zero(d);
  for (size_t j = 0; j < rows.size(); ++j) {
    const auto score = hn::Set(d, scores[j]);
    const T* value = values + rows[j] * stride + e;
    for (int n = 0; n < kVectors; ++n)
      sums[n] = hn::MulAdd(score, load_wide(d, value + n * lanes), sums[n]);
  }
  for (int n = 0; n < kVectors; ++n)
    store_narrow(d, sums[n], out + e + n * lanes);
}

/// The rows of row b's cache that its new token t sees, in the order of their positions: the
/// cached ones, then those of its ancestors and its own, or of its block. A path lies as if it were
/// decoded alone.
inline std::vector<int64_t>
list_visible(const CachedAttentionParams& params, int64_t b, int64_t t) {
  const int64_t cached = params.lengths[b];
  const int64_t first =
      params.window > 0 ? std::clamp<int64_t>(cached + t - params.window + 1, 0, cached) : 0;
  std::vector<int64_t> rows(static_cast<size_t>(cached - first));
  std::iota(rows.begin(), rows.end(), first);
  const int64_t end = params.is_block ? params.T : t + 1;
  for (int64_t j = 0; j < end; ++j)
    if (params.ancestors == nullptr || params.ancestors[(b * params.T + t) * params.T + j] != 0)
      rows.push_back(cached + j);
  return rows;
}

/// The queries of token t of row b that use key head g.
template <class T>
void attend(const CachedAttentionParams& params, int64_t b, int64_t t, int64_t g) {
  using C = typename Stored<T>::Compute;
  constexpr int kKeys = 4;
  constexpr int kVectors = 4;
  const int64_t E = params.E;
  const int64_t repeat = params.H / params.G;
  const int64_t stride = params.G * E;
  const int64_t head = (b * params.capacity * params.G + g) * E;
  const T* keys = static_cast<const T*>(params.key) + head;
  const T* values = static_cast<const T*>(params.value) + head;
  const auto rows = list_visible(params, b, t);
  const auto visible = static_cast<int64_t>(rows.size());
  std::vector<C> query(static_cast<size_t>(E));
  std::vector<C> scores(static_cast<size_t>(visible));
  const C scale = C{1} / std::sqrt(static_cast<C>(E));
  for (int64_t h = g * repeat; h < (g + 1) * repeat; ++h) {
    const int64_t offset = ((b * params.T + t) * params.H + h) * E;
    for (int64_t e = 0; e < E; ++e)
      query[static_cast<size_t>(e)] =
          scale * load_scalar(static_cast<const T*>(params.query) + offset + e);
    int64_t j = 0;
    for (; j + kKeys <= visible; j += kKeys)
      score_keys<kKeys>(query.data(), keys, stride, rows.data() + j, E, scores.data() + j);
    for (; j < visible; ++j)
      score_keys<1>(query.data(), keys, stride, rows.data() + j, E, scores.data() + j);
    const C inverse = C{1} / exponentiate(scores.data(), visible);
    for (C& score : scores)
      score *= inverse;

    T* out = static_cast<T*>(params.out) + offset;
    const hn::ScalableTag<C> d;
    const int64_t step = kVectors * static_cast<int64_t>(hn::Lanes(d));
    int64_t e = 0;
    for (; e + step <= E; e += step)
      sum_values<kVectors>(d, scores.data(), values, stride, rows, e, out);
    for_each_vector<C>(e, E, [&](auto tag, int64_t column) HWY_ATTR {
      sum_values<1>(tag, scores.data(), values, stride, rows, column, out);
    });
  }
}

void run_attend(const CachedAttentionParams& params, int64_t b, int64_t t, int64_t g) {
  switch (params.storage) {
    case Storage::kBF16:
      return attend<BF16>(params, b, t, g);
    case Storage::kF32:
      return attend<float>(params, b, t, g);
    case Storage::kF64:
      return attend<double>(params, b, t, g);
  }
}

}  // namespace draftsmith::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace draftsmith::ops {

HWY_EXPORT(run_attend);

void compute_cached_attention(const CachedAttentionParams& params) {
  const int64_t tasks_per_row = params.T * params.G;
  at::parallel_for(0, params.B * tasks_per_row, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      HWY_DYNAMIC_DISPATCH(run_attend)
    (params, i / tasks_per_row, i / params.G % params.T, i % params.G);
  });
}

}  // namespace draftsmith::ops
#endif  // HWY_ONCE
