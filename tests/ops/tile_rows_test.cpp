// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/tile_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/support/reference.h"

namespace draftsmith::ops {
namespace {

using testing::random_normal;
using torch::Tensor;

constexpr int64_t kContext = 200, kSlots = 40, kWidth = 4;

/// Tiles that move on, hold still, leap ahead and go back.
std::vector<TileColumns> list_tiles() {
  return {{0, 0, 0, 4, 6},      {0, 5, 4, 4, 16},    {0, 30, 8, 4, 40},
          {20, 30, 12, 8, 40},  {35, 30, 20, 4, 40}, {110, 30, 24, 4, 40},
          {120, 20, 28, 4, 30}, {60, 25, 32, 4, 32}, {70, 30, 36, 4, 34}};
}

TEST(TileRows, AreContextOwnSlotsAndZeros) {
  // As they lie in tensors of several heads.
  const auto context = random_normal({kContext, 2, kWidth}, 1).select(1, 1);
  const auto own = random_normal({kSlots, 2, kWidth}, 2).select(1, 0);
  for (const int64_t capacity : {40, 41, 55, 80, 300}) {
    TileRows rows(context, own, capacity);
    for (const auto& tile : list_tiles()) {
      const auto wanted = torch::cat(
          {context.narrow(0, tile.context_begin, tile.context),
           own.narrow(0, tile.own_begin, tile.own),
           torch::zeros({tile.width - tile.context - tile.own, kWidth}, context.options())});
      EXPECT_TRUE(rows.take(tile).equal(wanted)) << tile.context_begin << " of " << capacity;
    }
  }
}

TEST(ContextSums, AddUpTilesAndWriteEveryRow) {
  for (const auto dtype : {torch::kDouble, torch::kFloat, torch::kBFloat16}) {
    const auto wide = dtype == torch::kDouble ? torch::kDouble : torch::kFloat;
    const auto tiles = list_tiles();
    auto wanted = torch::zeros({kContext, kWidth}, wide);
    auto all = torch::full({kContext, 2, kWidth}, 77, dtype);
    ContextSums sums(all.select(1, 1), 90);
    for (size_t i = 0; i < tiles.size(); ++i) {
      const auto values = random_normal({tiles[i].context, kWidth}, i).to(dtype);
      wanted.narrow(0, tiles[i].context_begin, tiles[i].context) += values;
      int64_t first_needed = kContext;
      for (size_t j = i; j < tiles.size(); ++j)
        first_needed = std::min(first_needed, tiles[j].context_begin);
      sums.finish(first_needed);
      sums.add(values, tiles[i].context_begin);
    }
    sums.finish(kContext);
    EXPECT_TRUE(all.select(1, 1).equal(wanted.to(dtype))) << dtype;
    EXPECT_TRUE(all.select(1, 0).equal(torch::full({kContext, kWidth}, 77, dtype)));
  }
}

TEST(RowTiles, AreMeasuredAsTheyComeToBeUsed) {
  const TileRule rule{4, 2};
  const auto row = measure_tiles(
      {{0, 2, 0, 50}, {2, 3, 100, 160}, {3, 5, 40, 70}, {5, 6, 300, 310}}, rule, {0, 0, 0});
  EXPECT_EQ(row.first_needed, (std::vector<int64_t>{0, 40, 40, 300}));
  EXPECT_EQ(row.held_rows, 160 - 40);
  EXPECT_EQ(row.cells, 8 * 2 * pad_tile_columns(58));
  const auto bounded = measure_tiles({{0, 2, 0, 50}}, rule, {5000, 600, 700});
  EXPECT_EQ(bounded.held_rows, 700);
  EXPECT_EQ(bounded.cells, 5000);
}

}  // namespace
}  // namespace draftsmith::ops
