// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "draftsmith/ops/block_methods.h"

namespace draftsmith::ops {
namespace {

constexpr double kMaxWaste = 1.2;     // columns computed per column seen
constexpr int64_t kFreeColumns = 64;  // per block, that a product of this size hardly notices

}  // namespace

int64_t first_visible(int64_t anchor, int64_t context_begin, int64_t window) {
  return window > 0 ? std::max(context_begin, anchor - window + 1) : context_begin;
}

std::vector<BlockTile> plan_block_tiles(
    const BlockLayout& layout,
    const BlockVisibility& visibility,
    int64_t b,
    int64_t max_blocks) {
  const int64_t N = layout.anchors.size(1);
  const int64_t* anchors = layout.anchors.const_data_ptr<int64_t>() + b * N;
  const int64_t* begins = layout.context_begin.const_data_ptr<int64_t>() + b * N;
  const bool* keep = layout.keep.const_data_ptr<bool>() + b * N;
  std::vector<BlockTile> tiles;
  int64_t seen = 0;      // columns that the blocks of the last tile see, summed
  int64_t document = 0;  // where that of the last tile begins
  for (int64_t n = 0; n < N; ++n) {
    if (!keep[n]) continue;
    const int64_t begin =
        std::min(anchors[n], first_visible(anchors[n], begins[n], visibility.window));
    const int64_t length = anchors[n] - begin;
    // Never over two documents: a NaN in the values of one would reach the other's blocks, since
    // a weight of 0 times NaN is NaN.
    if (!tiles.empty() && tiles.back().end == n && n - tiles.back().first < max_blocks &&
        begins[n] == document) {
      BlockTile& tile = tiles.back();
      const int64_t union_begin = std::min(tile.context_begin, begin);
      const int64_t union_end = std::max(tile.context_end, anchors[n]);
      const int64_t blocks = n + 1 - tile.first;
      const auto computed = static_cast<double>((union_end - union_begin - kFreeColumns) * blocks);
      if (computed <= kMaxWaste * static_cast<double>(seen + length)) {
        tile = {tile.first, n + 1, union_begin, union_end};
        seen += length;
        continue;
      }
    }
    tiles.push_back({n, n + 1, begin, anchors[n]});
    seen = length;
    document = begins[n];
  }
  return tiles;
}

}  // namespace draftsmith::ops
