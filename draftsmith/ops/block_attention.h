// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

namespace draftsmith::ops {

/// What a layer lets its queries see beyond the layout.
struct BlockVisibility {
  int64_t window = 0;            // tokens, the current one included; 0 = no window
  bool is_causal_block = false;  // slots see only slots before them and themselves

  bool operator==(const BlockVisibility&) const = default;
};

/// What a GPU's kernels for one kind of layer must be told of a layout (ops/block_plan.h), on the
/// device.
struct PlacedPlan {
  BlockVisibility visibility;
  torch::Tensor lists;         // [n] int32
  std::vector<int64_t> sizes;  // of the lists, which stand one after the other
  bool keeps_all_blocks = false;
};

/// Where the draft blocks of a batch stand; on the host, wherever the keys are. The context that
/// block n of row b may see is the contiguous slice [context_begin, anchor) of its row, cut further
/// by a sliding window.
struct BlockLayout {
  torch::Tensor anchors;        // [B, N] int64, position of slot 0 in its row
  torch::Tensor keep;           // [B, N] bool; a block that is not kept sees nothing
  torch::Tensor context_begin;  // [B, N] int64, first position of the anchor's document
  int64_t block_size = 0;       // K
  /// From `place_plans`, for kernels that would else plan in every call.
  std::vector<PlacedPlan> plans = {};
};

/// The predicate of the layer as a dense mask. Query r = n K + k of row b sees
///   context j   if context_begin <= j < anchor, and anchor + k - j < window if there is one;
///   slot n K + k' of its own block, k' <= k if the block is causal;
/// and nothing if the block is not kept.
torch::Tensor make_block_mask(  // [B, N K, S + N K] bool
    const BlockLayout& layout,
    const BlockVisibility& visibility,
    int64_t context_length);  // S

/// How attention of blocks is computed.
enum class AttentionMethod {
  kBlock,   // neighbouring blocks against the slice of context they share; no mask, no gather.
            // On a GPU for bfloat16 heads of width 64, 128 or 256, else kGather runs in its place
  kGather,  // gathered keys and a boolean mask through scaled_dot_product_attention, in
            // checkpointed chunks of 45 blocks: a baseline
  kDense,   // one dense mask over everything: the definition that tests compare with
};

/// Keys and values come in two parts: the context's, and those of the blocks themselves.
struct BlockAttentionInputs {
  torch::Tensor query;          // [B, N K, H, E]
  torch::Tensor context_key;    // [B, S, G, E]
  torch::Tensor context_value;  // [B, S, G, E]
  torch::Tensor block_key;      // [B, N K, G, E]
  torch::Tensor block_value;    // [B, N K, G, E]
};

/// The heads that a layout's plans are made for.
struct BlockHeads {
  int64_t context_length;  // S
  int64_t query_heads, key_heads, width;
};

/// Whether kBlock takes a kernel that needs plans.
bool needs_plans(torch::Device device, torch::ScalarType dtype, const BlockHeads& heads);

/// Plans of each kind of layer, brought to `device`. With `has_fixed_sizes` their lists are as long
/// as those of any layout with as many blocks, so that a recorded kernel can be given other ones.
std::vector<PlacedPlan> place_plans(
    const BlockLayout& layout,
    const std::vector<BlockVisibility>& visibilities,
    const BlockHeads& heads,
    torch::Device device,
    bool has_fixed_sizes);

/// Attention of draft blocks to their context and to themselves:
///   out = softmax(q [context_key; block_key]^T / sqrt(E)) [context_value; block_value]
/// over what make_block_mask shows, softmax in float32 (float64 for float64 input); query head h
/// uses key head h / (H / G). Queries that see nothing give exact zeros.
///
/// Gradient: to all five tensors, the same bits for the same input.
/// Memory: kBlock keeps the output and one double a query and head, and while it runs two arrays
/// of at most [512, longest slice] a thread; on a GPU it keeps one float a query and head, and
/// needs another one in backward; kGather keeps nothing, and while it runs the keys,
/// values and scores of 45 blocks; kDense two [B, H, NK, S + NK] float32 arrays.
/// Errors: ShapeError if tensors disagree.
torch::Tensor block_attention(  // [B, N K, H, E]
    const BlockAttentionInputs& inputs,
    const BlockLayout& layout,
    const BlockVisibility& visibility,
    AttentionMethod method = AttentionMethod::kBlock);

}  // namespace draftsmith::ops
