// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "draftsmith/ops/block_attention.h"

namespace torch::autograd {
struct AutogradContext;
}  // namespace torch::autograd

namespace draftsmith::ops {

/// The methods of block_attention; tensors are checked and dense, the layout is on the host.
torch::Tensor attend_in_tiles(
    const BlockAttentionInputs& inputs,
    const BlockLayout& layout,
    const BlockVisibility& visibility);
torch::Tensor attend_gathered(
    const BlockAttentionInputs& inputs,
    const BlockLayout& layout,
    const BlockVisibility& visibility);
torch::Tensor attend_densely(
    const BlockAttentionInputs& inputs,
    const BlockLayout& layout,
    const BlockVisibility& visibility);

/// Blocks that attend_gathered gathers the keys of at a time.
inline constexpr int64_t kGatheredBlocks = 45;

/// What runs where `method` is asked for: kGather in place of a kBlock that a device has no kernel
/// for.
AttentionMethod find_method_that_runs(
    AttentionMethod method,
    torch::Device device,
    torch::ScalarType dtype,
    const BlockHeads& heads);

/// kBlock where there is a GPU kernel for such inputs.
bool has_block_kernel(const BlockAttentionInputs& inputs);
torch::Tensor attend_by_kernel(
    const BlockAttentionInputs& inputs,
    const BlockLayout& layout,
    const BlockVisibility& visibility);

/// Keeps the tensors of a call for backward: its inputs, and `more`.
void save_call(
    torch::autograd::AutogradContext* context,
    const BlockAttentionInputs& inputs,
    const BlockLayout& layout,
    const BlockVisibility& visibility,
    const std::vector<torch::Tensor>& more = {});

/// What `save_call` kept.
struct SavedCall {
  explicit SavedCall(torch::autograd::AutogradContext* context);

  BlockAttentionInputs inputs;
  BlockLayout layout;
  BlockVisibility visibility;
  std::vector<torch::Tensor> more;
};

/// Kept blocks [first, end) of one row that are computed together, and the union of the context
/// that they see.
struct BlockTile {
  int64_t first, end;
  int64_t context_begin, context_end;
};

/// First context position that slot 0 of a block sees; later slots see no earlier one.
int64_t first_visible(int64_t anchor, int64_t context_begin, int64_t window);

/// Time of a tile in any unit, by its blocks, the context of their union, and what each of them
/// sees of it on average.
using TileCost = std::function<double(int64_t blocks, int64_t context, double seen)>;

/// Cuts the kept blocks of row b into tiles of neighbours that cost least together. A tile is of one
/// document and has at most `max_blocks` blocks.
std::vector<BlockTile> plan_block_tiles(
    const BlockLayout& layout,
    const BlockVisibility& visibility,
    int64_t b,
    int64_t max_blocks,
    const TileCost& cost);

/// Columns that a tile of attend_in_tiles is filled up to, with keys and values of zero: a few sizes, at
/// most a sixteenth wider from 512 on. The library compiles a kernel for each shape of a bfloat16 product,
/// which takes as long as the product and half a megabyte, and anchors give every tile another width.
int64_t pad_tile_columns(int64_t columns);

/// How the tiles of attend_in_tiles are chosen: a tile's products are over all its rows (slots of its
/// blocks, times the query heads of a key head) and all its columns (the context of their union, and
/// their own slots).
struct TileRule {
  int64_t block_size;
  int64_t repeat;  // query heads per key head

  int64_t max_blocks() const;
  double cost(int64_t blocks, int64_t context) const;

  /// The most that any tile has whose blocks are in order, wherever their anchors stand.
  struct Bounds {
    int64_t cells;    // rows x columns
    int64_t columns;  // of the widest
    // Of keys, values and sums of gradients that are held while tiles move on: where they slide, room to
    // do so for a while.
    int64_t held_rows;
  };
  Bounds bound(int64_t num_blocks, int64_t context_tokens, int64_t window) const;
};

}  // namespace draftsmith::ops
