// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "draftsmith/ops/block_methods.h"

namespace draftsmith::ops {
namespace {

constexpr int64_t kMaxTileRows = 512;  // enough for a product at full speed
// A column costs the time of so many rows more than its rows: its key and value are packed, and their
// gradients added up. A tile costs the time of so many columns more than its columns, in calls.
constexpr int64_t kColumnRows = 24;
constexpr int64_t kTileColumns = 64;
constexpr int64_t kPadColumns = 32;

}  // namespace

int64_t pad_tile_columns(int64_t columns) {
  int64_t step = kPadColumns;
  while (step * 32 <= columns)
    step *= 2;
  return (columns + step - 1) / step * step;
}

int64_t first_visible(int64_t anchor, int64_t context_begin, int64_t window) {
  return window > 0 ? std::max(context_begin, anchor - window + 1) : context_begin;
}

std::vector<BlockTile> plan_block_tiles(
    const BlockLayout& layout,
    const BlockVisibility& visibility,
    int64_t b,
    int64_t max_blocks,
    const TileCost& cost) {
  const int64_t N = layout.anchors.size(1);
  const int64_t* anchors = layout.anchors.const_data_ptr<int64_t>() + b * N;
  const int64_t* begins = layout.context_begin.const_data_ptr<int64_t>() + b * N;
  const bool* keep = layout.keep.const_data_ptr<bool>() + b * N;
  // least[n]: of all cuts of the first n blocks; last[n] is the last tile of that cut.
  std::vector<double> least(static_cast<size_t>(N + 1), 0);
  std::vector<BlockTile> last(static_cast<size_t>(N + 1));
  for (int64_t n = 0; n < N; ++n) {
    const auto end = static_cast<size_t>(n + 1);
    least[end] = keep[n] ? std::numeric_limits<double>::infinity() : least[end - 1];
    BlockTile tile{n + 1, n + 1, std::numeric_limits<int64_t>::max(), 0};
    int64_t seen = 0;  // context of all the tile's blocks
    // Never over two documents: a NaN in the values of one would reach the other's blocks, since
    // a weight of 0 times NaN is NaN.
    while (tile.first > 0 && keep[tile.first - 1] && begins[tile.first - 1] == begins[n] &&
           n + 1 - tile.first < max_blocks) {
      const int64_t anchor = anchors[--tile.first];
      const int64_t begin = std::min(anchor, first_visible(anchor, begins[n], visibility.window));
      tile.context_begin = std::min(tile.context_begin, begin);
      tile.context_end = std::max(tile.context_end, anchor);
      seen += anchor - begin;
      const int64_t blocks = tile.end - tile.first;
      const double sum = least[static_cast<size_t>(tile.first)] +
                         cost(
                             blocks, tile.context_end - tile.context_begin,
                             static_cast<double>(seen) / static_cast<double>(blocks));
      if (sum >= least[end]) continue;
      least[end] = sum;
      last[end] = tile;
    }
  }
  std::vector<BlockTile> tiles;
  for (int64_t n = N; n > 0;) {
    if (!keep[n - 1]) {
      --n;
      continue;
    }
    tiles.push_back(last[static_cast<size_t>(n)]);
    n = tiles.back().first;
  }
  std::reverse(tiles.begin(), tiles.end());
  return tiles;
}

int64_t TileRule::max_blocks() const {
  return std::max<int64_t>(1, kMaxTileRows / (block_size * repeat));
}

double TileRule::cost(int64_t blocks, int64_t context) const {
  const int64_t own = blocks * block_size;
  return static_cast<double>((own * repeat + kColumnRows) * (context + own + kTileColumns));
}

/// Let a tile have m blocks of r rows and K slots, and gaps g_1.. g_(m-1) between its anchors, d
/// together. It is chosen only if no cut after its block j costs less, which comes to
///   j (g_(j+1) + ..) + (m - j) (g_1 + .. g_(j-1)) + (m + q) g_j + 2 j (m - j) K <= q (window + p)
/// with q = kColumnRows / r and p = kTileColumns. Summed over j, every g has at least the factor of
/// that in the middle, which bounds d.
TileRule::Bounds TileRule::bound(int64_t num_blocks, int64_t context_tokens, int64_t window) const {
  const double q = static_cast<double>(kColumnRows) / static_cast<double>(block_size * repeat);
  Bounds bounds{0, 0, 0};
  for (int64_t m = 1; m <= std::min(max_blocks(), num_blocks); ++m) {
    int64_t context = context_tokens;
    if (window > 0) {
      double allowed = 0;
      for (int64_t j = 1; j < m; ++j)
        allowed += q * static_cast<double>(window + kTileColumns) -
                   static_cast<double>(2 * j * (m - j) * block_size);
      if (allowed < 0) continue;  // of so many blocks none is chosen
      const int64_t i = m / 2;
      const double factor = static_cast<double>((m - i) * (m - i - 1) / 2 + i * (i - 1) / 2 + m);
      context = std::min(context, window + static_cast<int64_t>(allowed / (factor + q)));
    }
    const int64_t columns = pad_tile_columns(context + m * block_size);
    bounds.columns = std::max(bounds.columns, columns);
    bounds.cells = std::max(bounds.cells, m * block_size * repeat * columns);
  }
  bounds.held_rows = bounds.columns;
  if (window > 0) bounds.held_rows += std::min(bounds.columns, context_tokens);
  return bounds;
}

}  // namespace draftsmith::ops
