// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <torch/types.h>

#include "draftsmith/ops/block_attention.h"
#include "draftsmith/ops/tree_layout.h"

namespace draftsmith::ops {

/// Attention of T new tokens per row to the keys cached so far, their own included: query t of row
/// b sees keys 0 .. lengths[b] + t. Softmax in float32; query head h uses key head h / (H / G). A
/// query's result does not depend on how many others are asked for with it, bit for bit.
///
/// With a tree, query t sees the cached keys and those of its ancestors and itself, and gets the
/// bits that it would get if its path were decoded alone. Only the CPU has a kernel that keeps these
/// promises about bits; on a GPU it is `cached_attention_plain`.
///
/// Gradient: none. Memory: scores of one query per thread.
torch::Tensor cached_attention(           // [B, T, H, E]
    const torch::Tensor& query,           // [B, T, H, E]
    const torch::Tensor& key,             // [B, capacity, G, E] as query, dense
    const torch::Tensor& value,           // [B, capacity, G, E]
    const std::vector<int64_t>& lengths,  // [B] cached tokens before the new ones
    const TreeLayout* tree = nullptr);    // of the T new tokens; null: one after another

/// The same for a draft block of T slots after each row's context: what `block_attention` gives for
/// an anchor at lengths[b], except that nothing is copied together first.
torch::Tensor cached_block_attention(     // [B, T, H, E]
    const torch::Tensor& query,           // [B, T, H, E]
    const torch::Tensor& key,             // [B, capacity, G, E] as query, dense
    const torch::Tensor& value,           // [B, capacity, G, E]
    const std::vector<int64_t>& lengths,  // [B] tokens of context before the block
    const BlockVisibility& visibility);

/// The same by libtorch's operations, which every device has; a query's sums may depend on how many
/// others there are. Memory: a mask [B, T, longest row].
torch::Tensor cached_attention_plain(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const std::vector<int64_t>& lengths,
    const TreeLayout* tree = nullptr);

}  // namespace draftsmith::ops
