// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <torch/types.h>

namespace draftsmith::ops {

/// Where the draft blocks of a batch stand. The context that block n of row b may see is the
/// contiguous slice [context_begin, anchor) of its row, cut further by a sliding window.
struct BlockLayout {
  torch::Tensor anchors;        // [B, N] int64, position of slot 0 in its row
  torch::Tensor keep;           // [B, N] bool; a block that is not kept sees nothing
  torch::Tensor context_begin;  // [B, N] int64, first position of the anchor's document
  int64_t block_size = 0;       // K
};

/// What a layer lets its queries see beyond the layout.
struct BlockVisibility {
  int64_t window = 0;            // tokens, the current one included; 0 = no window
  bool is_causal_block = false;  // slots see only slots before them and themselves
};

/// The predicate of the layer as a dense mask. Query r = n K + k of row b sees
///   context j   if context_begin <= j < anchor, and anchor + k - j < window if there is one;
///   slot n K + k' of its own block, k' <= k if the block is causal;
/// and nothing if the block is not kept.
torch::Tensor make_block_mask(  // [B, N K, S + N K] bool
    const BlockLayout& layout,
    const BlockVisibility& visibility,
    int64_t context_length);  // S

/// Attention of draft blocks to their context and to themselves, written out with a dense mask:
/// the definition that faster methods are compared with.
///
/// out = softmax(q [k_context; k_block]^T / sqrt(E)) [v_context; v_block], softmax in float32,
/// query head h uses key head h / (H / G). Queries that see nothing give exact zeros.
///
/// Gradient: to all five tensors. Memory: two [B, H, NK, S + NK] float32 arrays.
torch::Tensor block_attention(   // [B, NK, H, E]
    const torch::Tensor& query,  // [B, NK, H, E]
    const torch::Tensor& key,    // [B, S + NK, G, E], context first
    const torch::Tensor& value,  // [B, S + NK, G, E]
    const torch::Tensor& mask);  // [B, NK, S + NK] bool, from make_block_mask

}  // namespace draftsmith::ops
