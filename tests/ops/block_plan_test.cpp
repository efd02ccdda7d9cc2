// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/block_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "draftsmith/base/random.h"
#include "draftsmith/ops/block_methods.h"

namespace draftsmith::ops {
namespace {

struct Case {
  BlockLayout layout;
  BlockVisibility visibility;
  int64_t S, repeat, E;
};

Case make_case(uint64_t seed) {
  uint64_t draws = 0;
  const auto draw = [&](int64_t low, int64_t high) {
    const auto count = static_cast<uint64_t>(high - low + 1);
    return low + static_cast<int64_t>(hash_key({seed, draws++}) % count);
  };
  const int64_t B = draw(1, 2), N = draw(1, 20), S = draw(1, 600);
  Case c{
      {}, {draw(0, 1) == 0 ? 0 : draw(1, 200), draw(0, 1) == 1}, S, draw(1, 8), 64 << draw(0, 2)};
  c.layout = {
      torch::zeros({B, N}, torch::kLong), torch::ones({B, N}, torch::kBool),
      torch::zeros({B, N}, torch::kLong), draw(1, 20)};
  for (int64_t b = 0; b < B; ++b) {
    const int64_t border = draw(0, S - 1);  // of two documents
    std::vector<int64_t> anchors;
    for (int64_t n = 0; n < N; ++n)
      anchors.push_back(draw(0, S - 1));
    if (draw(0, 3) > 0) std::sort(anchors.begin(), anchors.end());
    for (int64_t n = 0; n < N; ++n) {
      const int64_t anchor = anchors[static_cast<size_t>(n)];
      c.layout.anchors[b][n] = anchor;
      c.layout.context_begin[b][n] = anchor >= border ? border : 0;
      c.layout.keep[b][n] = draw(0, 4) > 0;
    }
  }
  return c;
}

/// The context that row r of sequence b sees.
std::pair<int64_t, int64_t> seen_by(const Case& c, int64_t b, int64_t r) {
  const int64_t slot = r / c.repeat;
  const int64_t n = slot / c.layout.block_size, k = slot % c.layout.block_size;
  const int64_t place = b * c.layout.anchors.size(1) + n;
  const int64_t anchor = c.layout.anchors.const_data_ptr<int64_t>()[place];
  const int64_t begin = c.layout.context_begin.const_data_ptr<int64_t>()[place];
  return {std::min(anchor, first_visible(anchor + k, begin, c.visibility.window)), anchor};
}

/// Every row of kept blocks is in one tile, no other row is in any, and the tiles' ranges are
/// right.
void check_tiles(const Case& c, const std::vector<cuda::QueryTile>& tiles, int64_t most_rows) {
  const int64_t B = c.layout.anchors.size(0), N = c.layout.anchors.size(1);
  const int64_t rows_of_block = c.layout.block_size * c.repeat;
  std::vector<int> times(static_cast<size_t>(B * N * rows_of_block), 0);
  for (const auto& tile : tiles) {
    EXPECT_LE(tile.end - tile.first, most_rows);
    for (int64_t r = tile.first; r < tile.end; ++r) {
      ++times[static_cast<size_t>(tile.sequence * N * rows_of_block + r)];
      const auto [begin, end] = seen_by(c, tile.sequence, r);
      if (begin < end) {
        EXPECT_LE(tile.context_begin, begin);
        EXPECT_GE(tile.context_end, end);
      }
      if (tile.common_begin < tile.common_end) {
        EXPECT_GE(tile.common_begin, begin);
        EXPECT_LE(tile.common_end, end);
      }
    }
  }
  for (int64_t b = 0; b < B; ++b)
    for (int64_t r = 0; r < N * rows_of_block; ++r)
      EXPECT_EQ(
          times[static_cast<size_t>(b * N * rows_of_block + r)],
          c.layout.keep.const_data_ptr<bool>()[b * N + r / rows_of_block] ? 1 : 0);
}

/// Every key is in one tile, whose walk meets all query tiles that see it.
void check_keys(const Case& c, const BlockPlan& plan) {
  const int64_t B = c.layout.anchors.size(0);
  const int64_t Q = c.layout.anchors.size(1) * c.layout.block_size;
  std::vector<int> times(static_cast<size_t>(B * (c.S + Q)), 0);
  for (const auto& tile : plan.key_tiles) {
    EXPECT_LE(tile.end - tile.begin, cuda::kKeyTileKeys);
    const int64_t first = tile.sequence * (c.S + Q) + (tile.is_own ? c.S : 0);
    for (int64_t key = tile.begin; key < tile.end; ++key)
      ++times[static_cast<size_t>(first + key)];
    for (size_t i = 0; i < plan.gradient_tiles.size(); ++i) {
      const auto& queries = plan.gradient_tiles[i];
      if (queries.sequence != tile.sequence) continue;
      bool is_seen = false;
      for (int64_t r = queries.first; r < queries.end; ++r) {
        auto [begin, end] = seen_by(c, tile.sequence, r);
        if (tile.is_own) {
          const int64_t K = c.layout.block_size;
          begin = r / c.repeat / K * K;
          end = begin + K;
        }
        is_seen =
            is_seen || std::max<int64_t>(begin, tile.begin) < std::min<int64_t>(end, tile.end);
      }
      const auto place = static_cast<int64_t>(i);
      EXPECT_TRUE(!is_seen || (tile.first_tile <= place && place < tile.end_tile));
    }
    for (int32_t i = tile.first_tile; i < tile.end_tile; ++i)
      EXPECT_EQ(plan.gradient_tiles[static_cast<size_t>(i)].sequence, tile.sequence);
  }
  EXPECT_TRUE(std::all_of(times.begin(), times.end(), [](int count) { return count == 1; }));
}

TEST(BlockPlan, CoversEveryRowAndKeyOnce) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    const auto c = make_case(seed);
    const auto plan = make_block_plan(c.layout, c.visibility, c.S, c.repeat, c.E);
    EXPECT_EQ(plan.keeps_all_blocks, c.layout.keep.all().item<bool>());
    check_tiles(c, plan.forward_tiles, cuda::forward_tile_rows(c.E));
    check_tiles(c, plan.gradient_tiles, cuda::kGradientTileRows);
    check_keys(c, plan);
  }
}

TEST(BlockPlan, FilledUpHasTheSameLengthsWhereverBlocksStand) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    auto c = make_case(seed);
    const auto filled_sizes = [&] {
      auto plan = make_block_plan(c.layout, c.visibility, c.S, c.repeat, c.E);
      const auto keys = plan.key_tiles.size();
      fill_block_plan(plan, c.layout.anchors.numel(), c.layout.block_size * c.repeat, c.E);
      EXPECT_EQ(plan.key_tiles.size(), keys);
      EXPECT_FALSE(plan.keeps_all_blocks);
      check_tiles(c, plan.forward_tiles, cuda::forward_tile_rows(c.E));
      check_tiles(c, plan.gradient_tiles, cuda::kGradientTileRows);
      check_keys(c, plan);
      auto order = plan.gradient_order;
      std::sort(order.begin(), order.end());
      for (size_t i = 0; i < order.size(); ++i)
        EXPECT_EQ(order[i], static_cast<int32_t>(i));
      return plan.sizes();
    };
    const auto sizes = filled_sizes();
    c.layout.keep.fill_(true);
    c.layout.anchors.copy_((c.layout.anchors * 7 + 3).remainder(c.S));
    c.layout.context_begin.zero_();
    EXPECT_EQ(filled_sizes(), sizes);
    c.layout.keep.fill_(false);
    EXPECT_EQ(filled_sizes(), sizes);
  }
}

TEST(BlockPlan, PutsMostWorkFirst) {
  const auto c = make_case(3);
  const auto plan = make_block_plan(c.layout, c.visibility, c.S, c.repeat, c.E);
  const auto width = [](const cuda::QueryTile& tile) {
    return tile.context_end - tile.context_begin;
  };
  for (size_t i = 1; i < plan.forward_tiles.size(); ++i)
    EXPECT_GE(width(plan.forward_tiles[i - 1]), width(plan.forward_tiles[i]));
  auto order = plan.gradient_order;
  for (size_t i = 1; i < order.size(); ++i)
    EXPECT_GE(
        width(plan.gradient_tiles[static_cast<size_t>(order[i - 1])]),
        width(plan.gradient_tiles[static_cast<size_t>(order[i])]));
  std::sort(order.begin(), order.end());
  std::vector<int32_t> all(plan.gradient_tiles.size());
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(order, all);
}

TEST(BlockPlan, SharesTheContextOfNeighboursInFullTiles) {
  // Eight blocks of 16 slots and 4 heads: 512 rows in four tiles of 128, each of two blocks.
  const BlockLayout layout{
      torch::arange(1000, 1080, 10, torch::kLong).view({1, 8}), torch::ones({1, 8}, torch::kBool),
      torch::zeros({1, 8}, torch::kLong), 16};
  const auto plan = make_block_plan(layout, {}, 2000, 4, 128);
  ASSERT_EQ(plan.forward_tiles.size(), 4U);
  EXPECT_EQ(plan.forward_tiles[0].first, 384);
  EXPECT_EQ(plan.forward_tiles[0].end, 512);
  EXPECT_EQ(plan.forward_tiles[0].context_end, 1070);
  EXPECT_EQ(plan.forward_tiles[0].common_end, 1060);
}

}  // namespace
}  // namespace draftsmith::ops
