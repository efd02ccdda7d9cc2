// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <ATen/Parallel.h>

#include "draftsmith/ops/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "draftsmith/ops/cpu/linear.cpp"
// clang-format off: this header comes first and compiles the file once per instruction set.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "draftsmith/ops/cpu/storage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace draftsmith::ops::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Rows of the largest tile: its sums, one weight per output column and one value of x are to fit
/// into the vector registers.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
constexpr int kTileRows = 6;  // of 32 registers
#else
constexpr int kTileRows = 4;
#endif

/// Dot products of kRows rows of x (in the compute type) with kOut rows of the weight. Every
/// product has one accumulator and the same order of additions whatever kRows and kOut are.
template <int kRows, int kOut, class T>
void dot_tile(
    const FewRowLinearParams& params,
    const typename Stored<T>::Compute* x,  // [kRows, in]
    int64_t row,
    int64_t column) {
  using C = typename Stored<T>::Compute;
  const hn::ScalableTag<C> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t in = params.in;
  const int64_t end = in / lanes * lanes;
  const T* weight = static_cast<const T*>(params.weight) + column * in;
  hn::Vec<decltype(d)> sums[kRows][kOut];
  for (int r = 0; r < kRows; ++r)
    for (int o = 0; o < kOut; ++o)
      sums[r][o] = hn::Zero(d);
  for (int64_t i = 0; i < end; i += lanes) {
    hn::Vec<decltype(d)> weights[kOut];
    for (int o = 0; o < kOut; ++o)
      weights[o] = load_wide(d, weight + o * in + i);
    for (int r = 0; r < kRows; ++r) {
      const auto value = hn::LoadU(d, x + r * in + i);
      for (int o = 0; o < kOut; ++o)
        sums[r][o] = hn::MulAdd(value, weights[o], sums[r][o]);
    }
  }
  T* out = static_cast<T*>(params.out);
  for (int r = 0; r < kRows; ++r) {
    for (int o = 0; o < kOut; ++o) {
      C sum = hn::GetLane(hn::SumOfLanes(d, sums[r][o]));
      for (int64_t i = end; i < in; ++i)
        sum += x[r * in + i] * load_scalar(weight + o * in + i);
      store_scalar<T>(sum, out + (row + r) * params.out_features + column + o);
    }
  }
}

/// All rows against output columns [begin, end).
template <class T>
void linear_columns(const FewRowLinearParams& params, int64_t begin, int64_t end) {
  using C = typename Stored<T>::Compute;
  std::vector<C> x(static_cast<size_t>(params.rows * params.in));
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = load_scalar(static_cast<const T*>(params.x) + i);
  const auto rows_at = [&](int64_t row) { return x.data() + row * params.in; };
  const auto run_rows = [&]<int kOut>(int64_t column) {
    int64_t row = 0;
    const auto run_tiles = [&]<int kRows>() {
      for (; row + kRows <= params.rows; row += kRows)
        dot_tile<kRows, kOut, T>(params, rows_at(row), row, column);
    };
    run_tiles.template operator()<kTileRows>();
    if constexpr (kTileRows > 4) run_tiles.template operator()<4>();
    run_tiles.template operator()<2>();
    run_tiles.template operator()<1>();
  };
  int64_t column = begin;
  for (; column + 4 <= end; column += 4)
    run_rows.template operator()<4>(column);
  for (; column < end; ++column)
    run_rows.template operator()<1>(column);
}

void run_linear_columns(const FewRowLinearParams& params, int64_t begin, int64_t end) {
  switch (params.storage) {
    case Storage::kBF16:
      return linear_columns<BF16>(params, begin, end);
    case Storage::kF32:
      return linear_columns<float>(params, begin, end);
    case Storage::kF64:
      return linear_columns<double>(params, begin, end);
  }
}

}  // namespace draftsmith::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace draftsmith::ops {

HWY_EXPORT(run_linear_columns);

namespace {
constexpr int64_t kWeightsPerTask = 65536;
}  // namespace

void compute_few_row_linear(const FewRowLinearParams& params) {
  const int64_t grain = std::max<int64_t>(4, kWeightsPerTask / std::max<int64_t>(1, params.in));
  at::parallel_for(0, params.out_features, grain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(run_linear_columns)(params, begin, end);
  });
}

}  // namespace draftsmith::ops
#endif  // HWY_ONCE
