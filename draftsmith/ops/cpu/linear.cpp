// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <type_traits>
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

constexpr int64_t kLine = 64;    // bytes of a cache line
constexpr int64_t kPage = 4096;  // where the processor's own prefetching stops
/// Bytes of weights that all tiles use before the next ones: with one tile what is fetched ahead
/// into the first-level cache, with more what stays in the second-level one.
constexpr int64_t kNearBlock = 16384;
constexpr int64_t kFarBlock = 65536;

/// The weights of the next block, a few lines of which are fetched with every step of this one's
/// tiles. The processor's own prefetching starts anew with each short row, and rests while tiles
/// work on weights that are there.
struct NextBlock {
  const char* begin;
  const char* end;
  int64_t lines_per_step;
  bool is_near;

  /// What a tile of `steps` steps is to fetch.
  NextBlock take(int64_t steps) {
    NextBlock part = *this;
    if (begin >= end) part.lines_per_step = 0;
    begin += steps * part.lines_per_step * kLine;
    return part;
  }
  HWY_INLINE void fetch_step() {
    for (int64_t line = 0; line < lines_per_step; ++line, begin += kLine) {
      if (is_near) {
        __builtin_prefetch(begin, /*for writing=*/0, /*first level=*/3);
      } else {
        __builtin_prefetch(begin, /*for writing=*/0, /*second level=*/2);
      }
    }
  }
};

template <class T>
int64_t lanes_of() {
  return static_cast<int64_t>(hn::Lanes(hn::ScalableTag<typename Stored<T>::Compute>()));
}

/// Dot products of kRows rows of x (in the compute type) with kOut rows of the weight. Every
/// product has one accumulator and the same order of additions whatever kRows and kOut are.
template <int kRows, int kOut, class T>
void dot_tile(
    const FewRowLinearParams& params,
    const typename Stored<T>::Compute* x,  // [kRows, in]
    int64_t row,
    int64_t column,
    NextBlock next) {
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
    next.fetch_step();
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

/// The rows of x in the compute type, [rows, in]: x itself, or made in `scratch`.
template <class T>
const typename Stored<T>::Compute* widen_rows(
    const FewRowLinearParams& params,
    std::vector<typename Stored<T>::Compute>& scratch) {
  if constexpr (std::is_same_v<T, typename Stored<T>::Compute>) {
    return static_cast<const T*>(params.x);
  } else {
    scratch.resize(static_cast<size_t>(params.rows * params.in));
    for (size_t i = 0; i < scratch.size(); ++i)
      scratch[i] = load_scalar(static_cast<const T*>(params.x) + i);
    return scratch.data();
  }
}

/// The tile of `rows` rows at `row`.
template <int kOut, class T>
void run_tile(
    const FewRowLinearParams& params,
    const typename Stored<T>::Compute* x,
    int64_t rows,
    int64_t row,
    int64_t column,
    NextBlock& next) {
  const auto part = next.take(params.in / lanes_of<T>());
  const auto run = [&]<int kRows>() {
    dot_tile<kRows, kOut, T>(params, x + row * params.in, row, column, part);
  };
  switch (rows) {
    case 1:
      return run.template operator()<1>();
    case 2:
      return run.template operator()<2>();
    case 3:
      return run.template operator()<3>();
    case 4:
      return run.template operator()<4>();
    case 5:
      return run.template operator()<5>();
    default:
      return run.template operator()<6>();
  }
}

/// All rows against output columns [begin, end), block by block, each in as few tiles of rows as
/// will do.
template <class T>
void linear_columns(const FewRowLinearParams& params, int64_t begin, int64_t end) {
  using C = typename Stored<T>::Compute;
  std::vector<C> scratch;
  const C* x = widen_rows<T>(params, scratch);
  const int64_t tiles = (params.rows + kTileRows - 1) / kTileRows;
  const int64_t row_bytes = std::max<int64_t>(1, params.in) * static_cast<int64_t>(sizeof(T));
  const int64_t block =
      std::max<int64_t>(4, (tiles > 1 ? kFarBlock : kNearBlock) / row_bytes / 4 * 4);
  const int64_t block_bytes = block * row_bytes;
  const int64_t steps = tiles * (block / 4) * std::max<int64_t>(1, params.in / lanes_of<T>());
  // Long rows keep memory busy by themselves, and so does one row of x with wide weights.
  const bool is_busy = tiles == 1 && (row_bytes >= kPage || (params.rows == 1 && sizeof(T) >= 4));
  for (int64_t first = begin; first < end; first += block) {
    const int64_t last = std::min(first + block, end);
    const char* after = static_cast<const char*>(params.weight) + (first + block) * row_bytes;
    NextBlock next{
        .begin = after,
        .end = after + (is_busy || last == end ? 0 : block_bytes),
        .lines_per_step = (block_bytes + steps * kLine - 1) / (steps * kLine),
        .is_near = tiles == 1};
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t row = params.rows * tile / tiles;
      const int64_t rows = params.rows * (tile + 1) / tiles - row;
      int64_t column = first;
      for (; column + 4 <= last; column += 4)
        run_tile<4, T>(params, x, rows, row, column, next);
      for (; column < last; ++column)
        run_tile<1, T>(params, x, rows, row, column, next);
    }
  }
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
