// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "draftsmith/base/random.h"
#include "draftsmith/ops/block_methods.h"

namespace draftsmith::ops {
namespace {

std::vector<BlockTile>
cut_as_tiles(const BlockLayout& layout, const BlockVisibility& visibility, int64_t max_blocks) {
  const TileRule rule{layout.block_size, 2};
  const auto cost = [&](int64_t blocks, int64_t context, double /*seen*/) {
    return rule.cost(blocks, context);
  };
  return plan_block_tiles(layout, visibility, 0, max_blocks, cost);
}

double cost_together(const std::vector<BlockTile>& tiles, const TileRule& rule) {
  double sum = 0;
  for (const auto& tile : tiles)
    sum += rule.cost(tile.end - tile.first, tile.context_end - tile.context_begin);
  return sum;
}

TEST(BlockTiles, JoinNeighboursThatShareTheirContext) {
  const BlockLayout layout{
      torch::tensor({1000, 1010, 1020, 4000, 4010, 4020}, torch::kLong).view({1, 6}),
      torch::tensor({true, true, true, true, false, true}).view({1, 6}),
      torch::zeros({1, 6}, torch::kLong), 16};
  const auto full = cut_as_tiles(layout, {}, 8);
  ASSERT_EQ(full.size(), 3U);  // 1000.. and 4000 share too little; block 4 is not kept
  EXPECT_EQ(full[0].first, 0);
  EXPECT_EQ(full[0].end, 3);
  EXPECT_EQ(full[0].context_begin, 0);
  EXPECT_EQ(full[0].context_end, 1020);
  EXPECT_EQ(full[1].first, 3);
  EXPECT_EQ(full[1].end, 4);
  EXPECT_EQ(full[2].first, 5);
  const auto sliding = cut_as_tiles(layout, {64, true}, 2);
  ASSERT_EQ(sliding.size(), 4U);
  EXPECT_EQ(sliding[0].end, 2);  // at most two blocks
  EXPECT_EQ(sliding[0].context_begin, 1000 - 63);
  EXPECT_EQ(sliding[0].context_end, 1010);
}

TEST(BlockTiles, AreFilledUpToAFewWidths) {
  std::set<int64_t> widths;
  for (int64_t columns = 1; columns <= 4096; ++columns) {
    const int64_t padded = pad_tile_columns(columns);
    ASSERT_GE(padded, columns);
    ASSERT_LE(padded, columns + std::max<int64_t>(31, columns / 16)) << columns;
    ASSERT_EQ(pad_tile_columns(padded), padded);
    widths.insert(padded);
  }
  EXPECT_LE(widths.size(), 64U);
}

/// Blocks in order, `spacing` apart on average, from `first` on.
BlockLayout make_sorted_layout(int64_t N, int64_t K, double spacing, double first, uint64_t seed) {
  std::vector<int64_t> anchors;
  for (uint64_t n = 0; n < static_cast<uint64_t>(N); ++n)
    anchors.push_back(static_cast<int64_t>(
        first +
        spacing * static_cast<double>(hash_key({seed, n}) % 1000) / 1000 * static_cast<double>(N)));
  std::sort(anchors.begin(), anchors.end());
  return {
      torch::tensor(anchors, torch::kLong).view({1, N}), torch::ones({1, N}, torch::kBool),
      torch::zeros({1, N}, torch::kLong), K};
}

TEST(BlockTiles, CostLeastTogether) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    const int64_t N = 8;
    const auto layout = make_sorted_layout(N, 16, 10 << seed % 5, 100, seed);
    const TileRule rule{16, 2};
    const double least = cost_together(cut_as_tiles(layout, {256, true}, 5), rule);
    // Every way to cut: bit n says whether a tile ends after block n.
    for (int64_t cuts = 0; cuts < 1 << (N - 1); ++cuts) {
      double sum = 0;
      int64_t first = 0;
      bool is_allowed = true;
      for (int64_t n = 0; n < N; ++n) {
        if (n + 1 < N && (cuts >> n & 1) == 0) continue;
        const int64_t begin = first_visible(layout.anchors[0][first].item<int64_t>(), 0, 256);
        sum += rule.cost(n + 1 - first, layout.anchors[0][n].item<int64_t>() - begin);
        is_allowed = is_allowed && n + 1 - first <= 5;
        first = n + 1;
      }
      if (is_allowed) {
        EXPECT_GE(sum, least * (1 - 1e-12)) << cuts;
      }
    }
  }
}

TEST(BlockTiles, CostNoMoreWhereAnchorsAreSparse) {
  const TileRule rule{32, 2};
  const auto cost_at = [&](double spacing) {
    const auto layout = make_sorted_layout(256, 32, spacing, 2048, 7);
    return cost_together(cut_as_tiles(layout, {2048, true}, rule.max_blocks()), rule);
  };
  const double dense = cost_at(8);
  EXPECT_LE(cost_at(24), 1.05 * dense);
  EXPECT_LE(cost_at(56), 1.10 * dense);
  EXPECT_LE(cost_at(120), 1.16 * dense);
}

TEST(BlockTiles, StayWithinTheirBounds) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    uint64_t draws = 0;
    const auto draw = [&](int64_t low, int64_t high) {
      return low + static_cast<int64_t>(
                       hash_key({seed, draws++}) % static_cast<uint64_t>(high - low + 1));
    };
    const int64_t K = draw(1, 32), N = draw(1, 80), window = draw(0, 3) == 0 ? 0 : draw(1, 3000);
    const TileRule rule{K, draw(1, 8)};
    const auto layout = make_sorted_layout(
        N, K, std::exp2(static_cast<double>(draw(0, 9))), static_cast<double>(draw(0, 2000)), seed);
    const int64_t context = layout.anchors.max().item<int64_t>();
    const auto bounds = rule.bound(N, context, window);
    const auto cost = [&](int64_t blocks, int64_t columns, double /*seen*/) {
      return rule.cost(blocks, columns);
    };
    for (const auto& tile : plan_block_tiles(layout, {window, true}, 0, rule.max_blocks(), cost)) {
      const int64_t own = (tile.end - tile.first) * K;
      const int64_t columns = tile.context_end - tile.context_begin + own;
      EXPECT_LE(columns, bounds.columns);
      EXPECT_LE(own * rule.repeat * columns, bounds.cells);
    }
    EXPECT_GE(bounds.held_rows, bounds.columns);
    EXPECT_LE(bounds.held_rows, bounds.columns + (window > 0 ? context : 0));
  }
}

TEST(BlockTiles, EndWithTheirDocument) {
  const BlockLayout layout{
      torch::tensor({100, 110, 120, 130}, torch::kLong).view({1, 4}),
      torch::ones({1, 4}, torch::kBool), torch::tensor({0, 0, 115, 115}, torch::kLong).view({1, 4}),
      16};
  const auto tiles = cut_as_tiles(layout, {}, 8);
  ASSERT_EQ(tiles.size(), 2U);
  EXPECT_EQ(tiles[0].end, 2);
  EXPECT_EQ(tiles[1].first, 2);
  EXPECT_EQ(tiles[1].context_begin, 115);
}

}  // namespace
}  // namespace draftsmith::ops
