// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "draftsmith/ops/block_attention.h"
#include "draftsmith/ops/cuda/block_attention.h"

namespace draftsmith::ops {

/// What a GPU's thread blocks compute of block attention, decided on the host.
struct BlockPlan {
  std::vector<cuda::SeenContext> blocks;        // [B, N]
  std::vector<cuda::QueryTile> forward_tiles;   // most work first
  std::vector<cuda::QueryTile> gradient_tiles;  // in the order of sequences and rows
  std::vector<int32_t> gradient_order;          // of gradient_tiles, most work first
  std::vector<cuda::KeyTile> key_tiles;         // most work first; together all keys
  bool keeps_all_blocks;

  /// All lists one after the other, for one copy to the device.
  torch::Tensor join() const;  // [n] int32
  /// Entries of each list.
  std::vector<int64_t> sizes() const;
};

/// Where the lists stand in what `join` gave, on its device.
cuda::BlockPlanView view_block_plan(const torch::Tensor& joined, const std::vector<int64_t>& sizes);

/// What the kernels take, but for the results.
cuda::BlockAttentionParams make_kernel_params(
    const BlockAttentionInputs& inputs,
    const BlockVisibility& visibility,
    int64_t block_size,
    const cuda::BlockPlanView& plan);

/// A pure function; the layout is dense and on the host.
BlockPlan make_block_plan(
    const BlockLayout& layout,
    const BlockVisibility& visibility,
    int64_t context_length,  // S
    int64_t repeat,          // query heads per key head
    int64_t head_width);     // E, which has a kernel

/// Adds empty tiles up to the most that `num_blocks` blocks [B N] may be cut into: all layouts of so
/// many blocks then have lists of the same lengths.
void fill_block_plan(
    BlockPlan& plan,
    int64_t num_blocks,
    int64_t rows_of_block,  // K times the query heads per key head
    int64_t head_width);

}  // namespace draftsmith::ops
