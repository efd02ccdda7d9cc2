// SPDX-License-Identifier: Apache-2.0
// The chunked delta rule by vector instructions. Columns of a head's state do not depend on each
// other: what a chunk's tokens have to do with each other is computed once, then a few columns at a
// time go through the whole chunk, with their part of the state in the first-level cache.
#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <cmath>

#include <ATen/Parallel.h>

#include "draftsmith/ops/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "draftsmith/ops/cpu/delta_vector_chunks.cpp"
// clang-format off: this header comes first and compiles the file once per instruction set.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "draftsmith/ops/cpu/delta_chunk-inl.h"
#include "draftsmith/ops/cpu/loops-inl.h"
#include "draftsmith/ops/cpu/storage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace draftsmith::ops::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Columns that go through a chunk together.
template <class C>
int64_t panel_width() {
  return kVectors * static_cast<int64_t>(hn::Lanes(hn::ScalableTag<C>()));
}

/// Memory that starts at a cache line, as vectors of 64 bytes want it.
template <class C>
struct ZeroedArray {
  explicit ZeroedArray(int64_t count)
      : values(hwy::AllocateAligned<C>(static_cast<size_t>(count))) {
    std::fill(values.get(), values.get() + count, C{0});
  }
  C* data() const { return values.get(); }
  hwy::AlignedFreeUniquePtr<C[]> values;
};

/// Scratch of one thread. Widths are filled up with zeros: keys and queries to whole tiles of rows,
/// values to whole panels.
template <class C>
struct VectorChunk {
  explicit VectorChunk(const DeltaChunkParams& params)
      : panel(panel_width<C>()),
        panels((params.Ev + panel - 1) / panel),
        key_width((params.Ek + kRows - 1) / kRows * kRows),
        query(kChunk * key_width),
        key(kChunk * key_width),
        turned_key(key_width * kChunk),
        state(panels * key_width * panel),
        key_key(kChunk * kChunk),
        query_key(kChunk * kChunk),
        value(kChunk * panel),
        written(kChunk * panel),
        out(kChunk * panel) {}

  C* state_panel(int64_t p) const { return state.data() + p * key_width * panel; }

  int64_t panel, panels, key_width;
  ZeroedArray<C> query, key;          // [64, key_width]
  ZeroedArray<C> turned_key;          // [key_width, 64]
  ZeroedArray<C> state;               // [panels, key_width, panel]
  ZeroedArray<C> key_key, query_key;  // [64, 64] products, then the system and the scores
  ZeroedArray<C> value, written;      // [64, panel] V and V'
  ZeroedArray<C> out;                 // [64, panel]
  ChunkGates<C> gates;
};

/// Widens a chunk's rows to [64, padded_width], zeros beside and below them.
template <class C, class T>
void load_rows(
    const T* from,
    int64_t stride,
    int64_t count,
    int64_t width,
    int64_t padded_width,
    C* to) {
  for (int64_t i = 0; i < count; ++i) {
    for_each_vector<C>(0, width, [&](auto d, int64_t e) HWY_ATTR {
      hn::StoreU(load_wide(d, from + i * stride + e), d, to + i * padded_width + e);
    });
    std::fill(to + i * padded_width + width, to + (i + 1) * padded_width, C{0});
  }
  std::fill(to + count * padded_width, to + kChunk * padded_width, C{0});
}

/// factor / norm of every row [64, width].
template <class C>
void measure_rows(const C* rows, int64_t width, C factor, C* scale) {
  const hn::ScalableTag<C> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < kChunk; ++i, rows += width) {
    auto sums = hn::Zero(d);
    int64_t e = 0;
    for (; e + lanes <= width; e += lanes) {
      const auto x = hn::LoadU(d, rows + e);
      sums = hn::MulAdd(x, x, sums);
    }
    C sum = hn::GetLane(hn::SumOfLanes(d, sums));
    for (; e < width; ++e)
      sum += rows[e] * rows[e];
    scale[i] = factor / std::sqrt(sum + static_cast<C>(1e-6));
  }
}

/// [64, width] -> [width, 64], in squares that stay in the cache.
template <class C>
void turn_keys(const C* key, int64_t width, C* turned) {
  for (int64_t row = 0; row < width; row += kRows)
    for (int64_t column = 0; column < kChunk; column += kRows)
      for (int64_t r = row; r < row + kRows; ++r)
        for (int64_t c = column; c < column + kRows; ++c)
          turned[r * kChunk + c] = key[c * width + r];
}

/// What follows from keys and queries alone: the system and the scores.
template <class C>
void compare_tokens(VectorChunk<C>& chunk) {
  const int64_t width = chunk.key_width;
  turn_keys(chunk.key.data(), width, chunk.turned_key.data());
  for (int64_t j = 0; j < kChunk; j += chunk.panel) {
    const C* right = chunk.turned_key.data() + j;
    for (int64_t i = j / kRows * kRows; i < kChunk; i += kRows) {
      const int64_t place = i * kChunk + j;
      multiply_block<C>(
          {chunk.key.data() + i * width, width, 1}, right, kChunk, width,
          chunk.key_key.data() + place, kChunk);
      multiply_block<C>(
          {chunk.query.data() + i * width, width, 1}, right, kChunk, width,
          chunk.query_key.data() + place, kChunk);
    }
  }
  apply_decays(chunk.gates, chunk.key_key.data(), chunk.query_key.data());
}

/// Some columns through the chunk: chunk.value becomes chunk.out, and `state` [key_width, panel] the
/// state after the chunk.
template <class C>
void run_panel(VectorChunk<C>& chunk, C* state) {
  const hn::ScalableTag<C> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t panel = chunk.panel;
  const int64_t width = chunk.key_width;
  const ChunkGates<C>& gates = chunk.gates;
  const C* value = chunk.value.data();
  C* written = chunk.written.data();
  C* out = chunk.out.data();

  // 1. beta (V - exp(decay) K S), and what the queries read of the state.
  for (int64_t i = 0; i < kChunk; i += kRows) {
    multiply_block<C>(
        {chunk.key.data() + i * width, width, 1}, state, panel, width, written + i * panel, panel);
    multiply_block<C>(
        {chunk.query.data() + i * width, width, 1}, state, panel, width, out + i * panel, panel);
  }
  for (int64_t i = 0; i < kChunk; ++i) {
    const auto carried = hn::Set(d, -gates.faded[i] * gates.key_scale[i]);
    const auto read = hn::Set(d, gates.faded[i] * gates.query_scale[i]);
    const auto beta = hn::Set(d, gates.beta[i]);
    for (int64_t e = i * panel; e < (i + 1) * panel; e += lanes) {
      const auto change = hn::MulAdd(carried, hn::LoadU(d, written + e), hn::LoadU(d, value + e));
      hn::StoreU(hn::Mul(beta, change), d, written + e);
      hn::StoreU(hn::Mul(read, hn::LoadU(d, out + e)), d, out + e);
    }
  }

  // 2. V' from (I + A) V', and the output.
  for (int64_t i = 0; i < kChunk; i += kRows) {
    solve_block(chunk.key_key.data(), written, i, panel);
    add_block(chunk.query_key.data(), written, i, panel, out);
  }

  // 3. The state after the chunk.
  for (int64_t i = 0; i < kChunk; ++i) {
    const auto scale = hn::Set(d, gates.left[i] * gates.key_scale[i]);
    for (int64_t e = i * panel; e < (i + 1) * panel; e += lanes)
      hn::StoreU(hn::Mul(scale, hn::LoadU(d, written + e)), d, written + e);
  }
  const auto kept = hn::Set(d, gates.kept());
  for (int64_t k = 0; k < width; k += kRows) {
    TileSums<C> sums;
    sums.load(state + k * panel, panel);
    for (auto& row : sums.at)
      for (auto& sum : row)
        sum = hn::Mul(sum, kept);
    add_products<C>({chunk.key.data() + k, 1, width}, written, panel, kChunk, sums);
    sums.store(state + k * panel, panel);
  }
}

/// One chunk of `count` tokens from row `first` of the batch.
template <class T, class C>
void run_chunk(
    const DeltaChunkParams& params,
    int64_t h,
    int64_t first,
    int64_t count,
    VectorChunk<C>& chunk) {
  const int64_t Ek = params.Ek;
  const int64_t Ev = params.Ev;
  const ChunkRows<T> rows(params, h, first);
  T* out = static_cast<T*>(params.out) + (first * params.Hv + h) * Ev;

  load_rows(rows.query, rows.stride, count, Ek, chunk.key_width, chunk.query.data());
  load_rows(rows.key, rows.stride, count, Ek, chunk.key_width, chunk.key.data());
  measure_rows(
      chunk.query.data(), chunk.key_width, 1 / std::sqrt(static_cast<C>(Ek)),
      chunk.gates.query_scale);
  measure_rows(chunk.key.data(), chunk.key_width, C{1}, chunk.gates.key_scale);
  chunk.gates.load(params, rows.gate, count);
  compare_tokens(chunk);
  for (int64_t p = 0; p < chunk.panels; ++p) {
    const int64_t column = p * chunk.panel;
    const int64_t columns = std::min(chunk.panel, Ev - column);
    load_rows(rows.value + column, rows.stride, count, columns, chunk.panel, chunk.value.data());
    run_panel(chunk, chunk.state_panel(p));
    for (int64_t i = 0; i < count; ++i) {
      for_each_vector<C>(0, columns, [&](auto d, int64_t e) HWY_ATTR {
        store_narrow(
            d, hn::LoadU(d, chunk.out.data() + i * chunk.panel + e),
            out + i * params.Hv * Ev + column + e);
      });
    }
  }
}

/// Calls `copy(panel's row, row of a state [Ek, Ev], its columns)` for all parts of a state.
template <class C, class Copy>
void for_each_part(const DeltaChunkParams& params, VectorChunk<C>& chunk, const Copy& copy) {
  for (int64_t p = 0; p < chunk.panels; ++p) {
    const int64_t column = p * chunk.panel;
    for (int64_t k = 0; k < params.Ek; ++k)
      copy(
          chunk.state_panel(p) + k * chunk.panel, k * params.Ev + column,
          std::min(chunk.panel, params.Ev - column));
  }
}

template <class T>
void run_typed_heads(const DeltaChunkParams& params, int64_t begin, int64_t end) {
  using C = typename Stored<T>::Compute;
  VectorChunk<C> chunk(params);
  for (int64_t task = begin; task < end; ++task) {
    // Spans may differ much in length, so that threads share heads rather than spans.
    const Span& span = params.spans[task % params.num_spans];
    const int64_t h = task / params.num_spans;
    C* state = params.state == nullptr ? nullptr
                                       : static_cast<C*>(params.state) +
                                             (span.row * params.Hv + h) * params.Ek * params.Ev;
    for_each_part(params, chunk, [&](C* part, int64_t place, int64_t columns) {
      if (state == nullptr) {
        std::fill(part, part + columns, C{0});
      } else {
        std::copy(state + place, state + place + columns, part);
      }
    });
    for (int64_t first = span.begin; first < span.end; first += kChunk) {
      const int64_t count = std::min(kChunk, span.end - first);
      run_chunk<T>(params, h, span.row * params.T + first, count, chunk);
    }
    if (state == nullptr) continue;
    for_each_part(params, chunk, [&](const C* part, int64_t place, int64_t columns) {
      std::copy(part, part + columns, state + place);
    });
  }
}

void run_heads(const DeltaChunkParams& params, int64_t begin, int64_t end) {
  switch (params.storage) {
    case Storage::kBF16:
      return run_typed_heads<BF16>(params, begin, end);
    case Storage::kF32:
      return run_typed_heads<float>(params, begin, end);
    case Storage::kF64:
      return run_typed_heads<double>(params, begin, end);
  }
}

}  // namespace draftsmith::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace draftsmith::ops {

HWY_EXPORT(run_heads);

void compute_delta_vector_chunks(const DeltaChunkParams& params) {
  at::parallel_for(0, params.num_spans * params.Hv, 1, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(run_heads)(params, begin, end);
  });
}

}  // namespace draftsmith::ops
#endif  // HWY_ONCE
