// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/block_plan.h"

#include <algorithm>
#include <iterator>
#include <type_traits>

#include "draftsmith/base/error.h"
#include "draftsmith/ops/block_methods.h"

namespace draftsmith::ops {
namespace {

using cuda::KeyTile;
using cuda::QueryTile;

constexpr int64_t kMaxRows = 512;  // of neighbouring blocks that are cut into tiles together
constexpr double kTileKeys = 64;   // that a tile could go through in the time it takes beside keys

int32_t narrow(int64_t value) { return static_cast<int32_t>(value); }

class Planner {
 public:
  Planner(const BlockLayout& layout, const BlockVisibility& visibility, int64_t repeat)
      : layout_(layout),
        visibility_(visibility),
        N_(layout.anchors.size(1)),
        rows_of_block_(layout.block_size * repeat) {}

  /// Tiles of at most `tile_rows` rows, in order. Blocks that share their context are cut evenly,
  /// wherever the cuts fall.
  std::vector<QueryTile> cut_rows(int64_t tile_rows) const {
    const int64_t max_blocks = std::max<int64_t>(1, kMaxRows / rows_of_block_);
    const auto cost = [&](int64_t blocks, int64_t context, double seen) {
      return cost_of(blocks * rows_of_block_, tile_rows, static_cast<double>(context), seen);
    };
    std::vector<QueryTile> tiles;
    for (int64_t b = 0; b < layout_.anchors.size(0); ++b) {
      for (const BlockTile& blocks : plan_block_tiles(layout_, visibility_, b, max_blocks, cost)) {
        const int64_t begin = blocks.first * rows_of_block_;
        const int64_t rows = blocks.end * rows_of_block_ - begin;
        const int64_t parts = (rows + tile_rows - 1) / tile_rows;
        // Warps have 16 rows each, so cuts are multiples of that.
        const int64_t part = (rows + 16 * parts - 1) / (16 * parts) * 16;
        for (int64_t first = 0; first < rows; first += part)
          tiles.push_back(make_tile(b, begin + first, begin + std::min(rows, first + part)));
      }
    }
    return tiles;
  }

 private:
  /// Of rows cut into tiles, which take the same time however full they are: the keys that each goes
  /// through. A tile that is a part of the rows sees a part of what the union has beyond one block.
  static double cost_of(int64_t rows, int64_t tile_rows, double context, double seen) {
    const int64_t tiles = (rows + tile_rows - 1) / tile_rows;
    const double share = std::min(1.0, static_cast<double>(tile_rows) / static_cast<double>(rows));
    return static_cast<double>(tiles) * (seen + share * (context - seen) + kTileKeys);
  }

  QueryTile make_tile(int64_t b, int64_t first, int64_t end) const {
    const int64_t* anchors = layout_.anchors.const_data_ptr<int64_t>() + b * N_;
    const int64_t* begins = layout_.context_begin.const_data_ptr<int64_t>() + b * N_;
    const int64_t K = layout_.block_size;
    const int64_t repeat = rows_of_block_ / K;
    QueryTile tile{narrow(b), narrow(first), narrow(end), INT32_MAX, 0, 0, INT32_MAX};
    for (int64_t n = first / rows_of_block_; n * rows_of_block_ < end; ++n) {
      const int64_t anchor = anchors[n];
      const auto begin_of = [&](int64_t k) {
        return narrow(std::min(anchor, first_visible(anchor + k, begins[n], visibility_.window)));
      };
      const int64_t first_slot = std::max<int64_t>(0, first / repeat - n * K);
      const int64_t last_slot = std::min(K - 1, (end - 1) / repeat - n * K);
      if (begin_of(first_slot) < anchor) {
        tile.context_begin = std::min(tile.context_begin, begin_of(first_slot));
        tile.context_end = std::max(tile.context_end, narrow(anchor));
      }
      tile.common_begin = std::max(tile.common_begin, begin_of(last_slot));
      tile.common_end = std::min(tile.common_end, narrow(anchor));
    }
    if (tile.context_begin > tile.context_end) tile.context_begin = tile.context_end;
    return tile;
  }

  const BlockLayout& layout_;
  const BlockVisibility& visibility_;
  int64_t N_;
  int64_t rows_of_block_;
};

int64_t measure(const QueryTile& tile) { return tile.context_end - tile.context_begin; }

/// Tiles of the keys [0, length) of every sequence, and which query tiles see them: those whose
/// interval [begin_of, end_of) meets them.
template <class Interval>
void add_key_tiles(
    int64_t B,
    int64_t length,
    bool is_own,
    const std::vector<QueryTile>& queries,
    const Interval& interval_of,
    std::vector<KeyTile>& tiles) {
  const int64_t per_sequence = (length + cuda::kKeyTileKeys - 1) / cuda::kKeyTileKeys;
  const size_t before = tiles.size();
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t i = 0; i < per_sequence; ++i) {
      const int64_t begin = i * cuda::kKeyTileKeys;
      tiles.push_back(
          {narrow(b), is_own ? 1 : 0, narrow(begin),
           narrow(std::min(length, begin + cuda::kKeyTileKeys)), 0, 0});
    }
  }
  for (size_t q = 0; q < queries.size(); ++q) {
    const auto [begin, end] = interval_of(queries[q]);
    if (begin >= end) continue;
    KeyTile* own = tiles.data() + before + queries[q].sequence * per_sequence;
    for (int64_t i = begin / cuda::kKeyTileKeys; i * cuda::kKeyTileKeys < end; ++i) {
      if (own[i].end_tile == 0) own[i].first_tile = narrow(static_cast<int64_t>(q));
      own[i].end_tile = narrow(static_cast<int64_t>(q) + 1);
    }
  }
}

template <class T>
void append(const std::vector<T>& list, std::vector<int32_t>& joined) {
  static_assert(std::is_trivially_copyable_v<T> && alignof(T) == alignof(int32_t));
  const auto* words = reinterpret_cast<const int32_t*>(list.data());
  joined.insert(joined.end(), words, words + list.size() * (sizeof(T) / sizeof(int32_t)));
}

}  // namespace

torch::Tensor BlockPlan::join() const {
  std::vector<int32_t> joined;
  append(blocks, joined);
  append(forward_tiles, joined);
  append(gradient_tiles, joined);
  append(gradient_order, joined);
  append(key_tiles, joined);
  return torch::tensor(joined, torch::kInt);
}

std::vector<int64_t> BlockPlan::sizes() const {
  return {
      std::ssize(blocks), std::ssize(forward_tiles), std::ssize(gradient_tiles),
      std::ssize(gradient_order), std::ssize(key_tiles)};
}

cuda::BlockPlanView view_block_plan(
    const torch::Tensor& joined,
    const std::vector<int64_t>& sizes) {
  const int32_t* at = joined.const_data_ptr<int32_t>();
  const auto take = [&]<class T>(const T*& list, int64_t count) {
    list = reinterpret_cast<const T*>(at);
    at += count * static_cast<int64_t>(sizeof(T) / sizeof(int32_t));
  };
  cuda::BlockPlanView view = {};
  take(view.blocks, sizes[0]);
  take(view.forward_tiles, view.num_forward_tiles = sizes[1]);
  take(view.gradient_tiles, view.num_gradient_tiles = sizes[2]);
  take(view.gradient_order, sizes[3]);
  take(view.key_tiles, view.num_key_tiles = sizes[4]);
  return view;
}

cuda::BlockAttentionParams make_kernel_params(
    const BlockAttentionInputs& in,
    const BlockVisibility& visibility,
    int64_t block_size,
    const cuda::BlockPlanView& plan) {
  return {
      .query = in.query.const_data_ptr(),
      .context_key = in.context_key.const_data_ptr(),
      .context_value = in.context_value.const_data_ptr(),
      .block_key = in.block_key.const_data_ptr(),
      .block_value = in.block_value.const_data_ptr(),
      .B = in.query.size(0),
      .S = in.context_key.size(1),
      .N = in.query.size(1) / block_size,
      .K = block_size,
      .H = in.query.size(2),
      .G = in.context_key.size(2),
      .E = in.query.size(3),
      .window = visibility.window,
      .is_causal_block = visibility.is_causal_block,
      .plan = plan,
      .out = nullptr,
      .log_sum = nullptr};
}

BlockPlan make_block_plan(
    const BlockLayout& layout,
    const BlockVisibility& visibility,
    int64_t context_length,
    int64_t repeat,
    int64_t head_width) {
  const int64_t B = layout.anchors.size(0);
  const int64_t N = layout.anchors.size(1);
  const int64_t rows_of_block = layout.block_size * repeat;
  const Planner planner(layout, visibility, repeat);
  BlockPlan plan;
  const bool* keep = layout.keep.const_data_ptr<bool>();
  plan.keeps_all_blocks = std::all_of(keep, keep + B * N, [](bool is_kept) { return is_kept; });
  for (int64_t i = 0; i < B * N; ++i)
    plan.blocks.push_back(
        {narrow(std::min(
             layout.context_begin.const_data_ptr<int64_t>()[i],
             layout.anchors.const_data_ptr<int64_t>()[i])),
         narrow(layout.anchors.const_data_ptr<int64_t>()[i])});

  plan.forward_tiles = planner.cut_rows(cuda::forward_tile_rows(head_width));
  const auto is_longer = [](const auto& a, const auto& b) { return measure(a) > measure(b); };
  std::stable_sort(plan.forward_tiles.begin(), plan.forward_tiles.end(), is_longer);

  plan.gradient_tiles = planner.cut_rows(cuda::kGradientTileRows);
  for (size_t i = 0; i < plan.gradient_tiles.size(); ++i)
    plan.gradient_order.push_back(static_cast<int32_t>(i));
  const auto tile_at = [&](int32_t i) -> const QueryTile& {
    return plan.gradient_tiles[static_cast<size_t>(i)];
  };
  std::stable_sort(
      plan.gradient_order.begin(), plan.gradient_order.end(),
      [&](int32_t a, int32_t b) { return is_longer(tile_at(a), tile_at(b)); });

  using Interval = std::pair<int64_t, int64_t>;
  add_key_tiles(
      B, context_length, /*is_own=*/false, plan.gradient_tiles,
      [](const QueryTile& tile) {
        return Interval{tile.context_begin, tile.context_end};
      },
      plan.key_tiles);
  add_key_tiles(
      B, N * layout.block_size, /*is_own=*/true, plan.gradient_tiles,
      [&](const QueryTile& tile) {
        return Interval{
            tile.first / rows_of_block * layout.block_size,
            ((tile.end - 1) / rows_of_block + 1) * layout.block_size};
      },
      plan.key_tiles);
  std::stable_sort(
      plan.key_tiles.begin(), plan.key_tiles.end(), [](const KeyTile& a, const KeyTile& b) {
        return a.end_tile - a.first_tile > b.end_tile - b.first_tile;
      });
  return plan;
}

void fill_block_plan(
    BlockPlan& plan,
    int64_t num_blocks,
    int64_t rows_of_block,
    int64_t head_width) {
  // Tiles that neighbours share are fewer than those that each would have alone.
  const auto count_most = [&](int64_t tile_rows) {
    return static_cast<size_t>(num_blocks * ((rows_of_block + tile_rows - 1) / tile_rows));
  };
  const size_t most_forward = count_most(cuda::forward_tile_rows(head_width));
  const size_t most_gradient = count_most(cuda::kGradientTileRows);
  DS_CHECK(
      plan.forward_tiles.size() <= most_forward && plan.gradient_tiles.size() <= most_gradient);
  plan.forward_tiles.resize(most_forward, QueryTile{});
  for (auto i = plan.gradient_tiles.size(); i < most_gradient; ++i)
    plan.gradient_order.push_back(static_cast<int32_t>(i));
  plan.gradient_tiles.resize(most_gradient, QueryTile{});
  plan.keeps_all_blocks = false;  // nor may that differ
}

}  // namespace draftsmith::ops
