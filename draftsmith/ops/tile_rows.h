// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <torch/types.h>

#include "draftsmith/ops/block_methods.h"

namespace draftsmith::ops {

/// The columns of a tile of attend_in_tiles: context, its blocks' own slots, and padding.
struct TileColumns {
  int64_t context_begin, context;
  int64_t own_begin, own;
  int64_t width;  // padding included

  int64_t context_end() const { return context_begin + context; }
};

TileColumns list_columns(const BlockTile& tile, int64_t block_size);

/// The tiles of one row, and sizes of what they go through: those that any anchors could need, so that a
/// step takes the same memory for all of them.
struct RowTiles {
  std::vector<BlockTile> tiles;
  std::vector<int64_t> first_needed;  // of the context, by each tile or one after it
  int64_t cells;                      // rows x columns of the largest tile
  int64_t held_rows;                  // of keys, values and sums
};

RowTiles
measure_tiles(std::vector<BlockTile> tiles, const TileRule& rule, const TileRule::Bounds& bounds);

/// The keys, or the values, of one row and key head as one tile after the other needs them: context, own
/// slots and zeros without gaps. What a tile sees of the context like the tile before is not copied again.
class TileRows {
 public:
  /// Room for `capacity` rows, at least the width of the widest tile; the more, the less often rows are
  /// copied again.
  TileRows(torch::Tensor context, torch::Tensor own, int64_t capacity);  // [S, E], [N K, E]

  /// Valid until the next call.
  torch::Tensor take(const TileColumns& tile);  // [width, E]

 private:
  torch::Tensor context_, own_;
  torch::Tensor rows_;  // [capacity, E], the first of context position begin_
  int64_t begin_ = 0;
  int64_t end_ = 0;  // of the context that is there
};

/// Gradients of the keys, or the values, of one row and key head, summed over tiles in their order, in
/// float32 or wider. Only those that later tiles may add to are held; the rest is written where it belongs.
class ContextSums {
 public:
  /// `gradient` is written whole, once. Room for `capacity` rows: at least those from the begin of any
  /// tile's context, or a later tile's, to the end of all contexts so far.
  ContextSums(torch::Tensor gradient, int64_t capacity);  // [S, E]

  void add(
      const torch::Tensor& values,
      int64_t first);  // [n, E] dense, to the context's rows from there
  /// No tile adds to rows before `end` any more.
  void finish(int64_t end);

 private:
  torch::Tensor rows_of(int64_t begin, int64_t end) const;

  torch::Tensor gradient_;
  torch::Tensor sums_;  // [capacity, E], the first of context position base_
  int64_t base_ = 0;
  int64_t begin_ = 0;  // what comes before is written
  int64_t end_ = 0;    // sums of [begin_, end_) are there
};

}  // namespace draftsmith::ops
