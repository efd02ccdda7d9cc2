// SPDX-License-Identifier: Apache-2.0
#pragma once

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

/// Cuts the kept blocks of row b into tiles: neighbours of one document, while the union of their
/// contexts wastes little and the tile has at most `max_blocks` blocks.
std::vector<BlockTile> plan_block_tiles(
    const BlockLayout& layout,
    const BlockVisibility& visibility,
    int64_t b,
    int64_t max_blocks);

}  // namespace draftsmith::ops
