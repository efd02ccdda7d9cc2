// SPDX-License-Identifier: Apache-2.0
// Attention of tokens to those before them, in tiles of queries. Query heads that share a key head
// are rows of the same products. Keys come in blocks, and what was summed before a block is scaled
// down when the block has a larger score.
#include "draftsmith/ops/cpu/causal_attention.h"

#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include <ATen/Parallel.h>

#include "draftsmith/ops/cpu/pairs.h"
#include "draftsmith/ops/cpu/tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "draftsmith/ops/cpu/causal_attention.cpp"
// clang-format off: this header comes first and compiles the file once per instruction set.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "draftsmith/ops/cpu/loops-inl.h"
#include "draftsmith/ops/cpu/storage-inl.h"

#ifndef DRAFTSMITH_OPS_CPU_CAUSAL_ATTENTION_ONCE
#define DRAFTSMITH_OPS_CPU_CAUSAL_ATTENTION_ONCE
namespace draftsmith::ops {

inline constexpr int64_t kTileRows = 128;  // tokens of a tile, times heads that share a key head
inline constexpr int64_t kRowStep = 8;     // of products
inline constexpr int64_t kKeyBlock = 256;  // a panel of so many values fits the first-level cache

/// One key head of one span.
struct SpanHead {
  Span span;
  int64_t g;
  int64_t panels;
  uint32_t* keys;    // [panels, E / 2, 32]
  uint32_t* values;  // [E / 32, panels 16, 32]
};

/// Tokens first .. end - 1 of a span, of which `first` is a multiple of what a tile holds.
struct QueryTile {
  const SpanHead* head;
  int64_t first, end;
};

}  // namespace draftsmith::ops
#endif

HWY_BEFORE_NAMESPACE();
namespace draftsmith::ops::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Scratch of one thread.
struct TileScratch {
  explicit TileScratch(int64_t E)
      : query(allocate<BF16>(kTileRows * E)),
        weights(allocate<BF16>(kTileRows * kKeyBlock)),
        scores(allocate<float>(kTileRows * kKeyBlock)),
        out(allocate<float>(kTileRows * E)) {}

  template <class T>
  static hwy::AlignedFreeUniquePtr<T[]> allocate(int64_t count) {
    return hwy::AllocateAligned<T>(static_cast<size_t>(count));
  }
  hwy::AlignedFreeUniquePtr<BF16[]> query;    // [rows, E]
  hwy::AlignedFreeUniquePtr<BF16[]> weights;  // [rows, keys of a block]
  hwy::AlignedFreeUniquePtr<float[]> scores;  // [rows, keys of a block]
  hwy::AlignedFreeUniquePtr<float[]> out;     // [rows, E]
  float top[kTileRows], sum[kTileRows];       // largest scaled score, and sum of the weights
};

/// 32 tokens of a span's key head as factors of products.
void pack_panel(const CausalAttentionParams& params, const SpanHead& head, int64_t panel) {
  const hn::ScalableTag<uint32_t> d32;
  const hn::Rebind<uint16_t, decltype(d32)> d16;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d32));  // divides 32
  const int64_t E = params.E;
  const int64_t first = panel * kPairPanel;
  const int64_t count = std::min(kPairPanel, head.span.end - head.span.begin - first);
  const int64_t stride = params.G * E;
  const int64_t place = (head.span.row * params.S + head.span.begin + first) * stride + head.g * E;
  const auto rows = hwy::AllocateAligned<uint16_t>(static_cast<size_t>(kPairPanel * E));
  const auto gather = [&](const void* from) {
    for (int64_t i = 0; i < count; ++i) {
      const uint16_t* row = static_cast<const uint16_t*>(from) + place + i * stride;
      std::copy(row, row + E, rows.get() + i * E);
    }
    std::fill(rows.get() + count * E, rows.get() + kPairPanel * E, uint16_t{0});
  };
  gather(params.key);
  transpose_words(
      reinterpret_cast<const uint32_t*>(rows.get()), kPairPanel, E / 2,
      head.keys + panel * (E / 2) * kPairPanel);
  gather(params.value);
  for (int64_t column = 0; column < E; column += kPairPanel) {
    uint32_t* to = head.values + (column * head.panels + first) / 2 * kPairPanel;
    for (int64_t pair = 0; pair < kPairPanel / 2; ++pair) {
      const uint16_t* even = rows.get() + 2 * pair * E + column;
      for (int64_t e = 0; e < kPairPanel; e += lanes) {
        const auto low = hn::PromoteTo(d32, hn::LoadU(d16, even + e));
        const auto high = hn::PromoteTo(d32, hn::LoadU(d16, even + E + e));
        hn::StoreU(hn::Or(low, hn::ShiftLeft<16>(high)), d32, to + pair * kPairPanel + e);
      }
    }
  }
}

/// Scores of `count` > 0 keys become weights, zeros up to `width`. Returns what sums from blocks
/// before this one have to be scaled by.
inline float weigh_row(
    const float* scores,
    int64_t count,
    int64_t width,
    float scale,
    BF16* weights,
    float& top,
    float& sum) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));  // divides width
  const auto seen = [&](int64_t i) HWY_ATTR {
    return hn::FirstN(d, static_cast<size_t>(std::clamp<int64_t>(count - i, 0, lanes)));
  };
  const auto lowest = hn::Set(d, hwy::LowestValue<float>());
  auto tops = lowest;
  for (int64_t i = 0; i < count; i += lanes)
    tops = hn::Max(tops, hn::IfThenElse(seen(i), hn::LoadU(d, scores + i), lowest));
  const float before = top;
  top = std::max(before, hn::GetLane(hn::MaxOfLanes(d, tops)) * scale);
  const auto scales = hn::Set(d, scale);
  const auto shift = hn::Set(d, top);
  // Below it Exp is undefined and the value next to nothing.
  const auto bound = hn::Set(d, -87.F);
  auto sums = hn::Zero(d);
  int64_t i = 0;
  for (; i < count; i += lanes) {
    const auto power = hn::Max(hn::MulSub(hn::LoadU(d, scores + i), scales, shift), bound);
    const auto weight = hn::IfThenElseZero(seen(i), hn::Exp(d, power));
    sums = hn::Add(sums, weight);
    store_narrow(d, weight, weights + i);
  }
  std::fill(weights + i, weights + width, BF16{0});
  const float fading = std::exp(before - top);
  sum = sum * fading + hn::GetLane(hn::SumOfLanes(d, sums));
  return fading;
}

inline void scale_row(float* row, int64_t width, float factor) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));  // divides width
  for (int64_t e = 0; e < width; e += lanes)
    hn::StoreU(hn::Mul(hn::Set(d, factor), hn::LoadU(d, row + e)), d, row + e);
}

inline int64_t round_up(int64_t count, int64_t step) { return (count + step - 1) / step * step; }

/// The keys of a block from `first_key` of the span on, as the rows of a tile see them.
void attend_block(
    const CausalAttentionParams& params,
    const QueryTile& tile,
    int64_t first_key,
    TileScratch& scratch) {
  const int64_t E = params.E;
  const int64_t repeat = params.H / params.G;
  const int64_t rows = round_up((tile.end - tile.first) * repeat, kRowStep);
  const int64_t keys = std::min(kKeyBlock, tile.end - first_key);
  const SpanHead& head = *tile.head;
  // 1. Scores, from the first row that sees any of a panel's keys.
  for (int64_t key = 0; key < keys; key += kPairPanel) {
    const int64_t hidden = std::max<int64_t>(0, first_key + key - tile.first) * repeat;
    const int64_t begin = hidden / kRowStep * kRowStep;
    multiply_pairs(
        {.left = &scratch.query[static_cast<size_t>(begin * E)].bits,
         .left_stride = E,
         .right = head.keys + (first_key + key) / 2 * E,
         .rows = rows - begin,
         .depth = E,
         .out = scratch.scores.get() + begin * kKeyBlock + key,
         .out_stride = kKeyBlock,
         .accumulates = false});
  }
  // 2. Weights.
  const auto scale = 1 / std::sqrt(static_cast<float>(E));
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t token = std::min(tile.first + row / repeat, tile.end - 1);
    const int64_t count = std::min(keys, token + 1 - first_key);
    BF16* weights = scratch.weights.get() + row * kKeyBlock;
    if (count <= 0) {
      std::fill(weights, weights + round_up(keys, kPairPanel), BF16{0});
      continue;
    }
    const float fading = weigh_row(
        scratch.scores.get() + row * kKeyBlock, count, round_up(keys, kPairPanel), scale, weights,
        scratch.top[row], scratch.sum[row]);
    if (fading != 1 && first_key > 0) scale_row(scratch.out.get() + row * E, E, fading);
  }
  // 3. Weighted values, a few rows at a time up to the last key that one of them sees.
  constexpr int64_t kRowsAtOnce = 32;
  for (int64_t row = 0; row < rows; row += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, rows - row);
    const int64_t last = std::min(tile.first + (row + count - 1) / repeat, tile.end - 1);
    const int64_t seen = std::min(keys, last + 1 - first_key);
    if (seen <= 0) continue;
    for (int64_t column = 0; column < E; column += kPairPanel) {
      multiply_pairs(
          {.left = &scratch.weights[static_cast<size_t>(row * kKeyBlock)].bits,
           .left_stride = kKeyBlock,
           .right = head.values + (column * head.panels + first_key) / 2 * kPairPanel,
           .rows = count,
           .depth = round_up(seen, 2),
           .out = scratch.out.get() + row * E + column,
           .out_stride = E,
           .accumulates = first_key > 0});
    }
  }
}

void attend_tile(const CausalAttentionParams& params, const QueryTile& tile, TileScratch& scratch) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));  // divides E
  const int64_t E = params.E;
  const int64_t repeat = params.H / params.G;
  const Span& span = tile.head->span;
  const int64_t rows = (tile.end - tile.first) * repeat;
  const auto place = [&](int64_t token) {
    return ((span.row * params.S + span.begin + token) * params.H + tile.head->g * repeat) * E;
  };
  for (int64_t token = tile.first; token < tile.end; ++token) {
    const BF16* heads = static_cast<const BF16*>(params.query) + place(token);
    std::copy(heads, heads + repeat * E, scratch.query.get() + (token - tile.first) * repeat * E);
  }
  std::fill(
      scratch.query.get() + rows * E, scratch.query.get() + round_up(rows, kRowStep) * E, BF16{0});
  std::fill(scratch.top, scratch.top + kTileRows, hwy::LowestValue<float>());
  std::fill(scratch.sum, scratch.sum + kTileRows, 0.F);
  for (int64_t key = 0; key < tile.end; key += kKeyBlock)
    attend_block(params, tile, key, scratch);
  for (int64_t row = 0; row < rows; ++row) {
    BF16* out =
        static_cast<BF16*>(params.out) + place(tile.first + row / repeat) + row % repeat * E;
    const auto factor = hn::Set(d, 1 / scratch.sum[row]);
    for (int64_t e = 0; e < E; e += lanes)
      store_narrow(d, hn::Mul(factor, hn::LoadU(d, scratch.out.get() + row * E + e)), out + e);
  }
}

/// Runs tiles until none is left.
void run_tiles(
    const CausalAttentionParams& params,
    const std::vector<QueryTile>& tiles,
    std::atomic<size_t>& next) {
  TileScratch scratch(params.E);
  for (size_t i = next.fetch_add(1); i < tiles.size(); i = next.fetch_add(1))
    attend_tile(params, tiles[i], scratch);
}

}  // namespace draftsmith::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace draftsmith::ops {

HWY_EXPORT(pack_panel);
HWY_EXPORT(run_tiles);

namespace {

int64_t count_panels(const Span& span) {
  return (span.end - span.begin + kPairPanel - 1) / kPairPanel;
}

/// Tiles of a key head, those that see most first.
void add_tiles(const SpanHead& head, int64_t repeat, std::vector<QueryTile>& tiles) {
  const int64_t tokens = kTileRows / repeat;
  const int64_t length = head.span.end - head.span.begin;
  for (int64_t first = (length - 1) / tokens * tokens; first >= 0; first -= tokens)
    tiles.push_back({&head, first, std::min(first + tokens, length)});
}

}  // namespace

bool has_causal_attention(int64_t H, int64_t G, int64_t E) {
  // The tile unit is faster than pairs, and libtorch uses it.
  return has_pair_products() && !has_tiles() && E % kPairPanel == 0 && H / G <= kTileRows;
}

int64_t count_key_panels(const Span* spans, int64_t num_spans) {
  int64_t panels = 0;
  for (int64_t i = 0; i < num_spans; ++i)
    panels += count_panels(spans[i]);
  return panels;
}

void compute_causal_attention(const CausalAttentionParams& params) {
  std::vector<SpanHead> heads;
  int64_t place = 0;
  for (int64_t i = 0; i < params.num_spans; ++i) {
    const int64_t panels = count_panels(params.spans[i]);
    for (int64_t g = 0; g < params.G && panels > 0; ++g) {
      heads.push_back(
          {params.spans[i], g, panels, params.packed_keys + place, params.packed_values + place});
      place += panels * kPairPanel * params.E / 2;
    }
  }
  std::vector<std::pair<const SpanHead*, int64_t>> panels;
  std::vector<QueryTile> tiles;
  for (const SpanHead& head : heads) {
    for (int64_t panel = 0; panel < head.panels; ++panel)
      panels.emplace_back(&head, panel);
    add_tiles(head, params.H / params.G, tiles);
  }
  at::parallel_for(0, std::ssize(panels), 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto& [head, panel] = panels[static_cast<size_t>(i)];
      HWY_DYNAMIC_DISPATCH(pack_panel)(params, *head, panel);
    }
  });
  std::atomic<size_t> next = 0;
  at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t, int64_t) {
    HWY_DYNAMIC_DISPATCH(run_tiles)(params, tiles, next);
  });
}

}  // namespace draftsmith::ops
#endif  // HWY_ONCE
