// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <torch/types.h>

#include "draftsmith/ops/span.h"
#include "draftsmith/ops/tree_layout.h"

namespace draftsmith::ops {

/// Heads of a Gated DeltaNet layer; value head h uses key head h / (Hv / Hk).
struct DeltaShape {
  int64_t key_heads = 0;    // Hk
  int64_t value_heads = 0;  // Hv
  int64_t key_dim = 0;      // Ek
  int64_t value_dim = 0;    // Ev

  int64_t width() const { return 2 * key_heads * key_dim + value_heads * value_dim; }  // C
};

/// T tokens for the gated delta rule. Per value head, with a state S [Ek, Ev]:
///   S <- exp(decay) S;   S <- S + k (beta (v - S^T k))^T;   out = S^T q
/// where k and q are divided by sqrt(sum of squares + 1e-6) first, and q also by sqrt(Ek).
/// Everything in float32 (float64 for float64); only `mixed` and the output have a narrower dtype.
/// Gradient of the functions below: none. Source: Gated DeltaNet, arXiv 2412.06464.
struct DeltaInputs {
  torch::Tensor mixed;  // [B, T, C] queries, keys and values of all heads side by side
  torch::Tensor decay;  // [B, T, Hv] float32 (float64 for float64), <= 0
  torch::Tensor beta;   // [B, T, Hv] as decay
  DeltaShape shape;
};

/// Many tokens at once, in chunks of 64: within a chunk a triangular system instead of a
/// recurrence. Every span starts from a state of its own: zeros, or `state[row]` if given, which
/// then becomes the state after the span (one span per row). Tokens outside the spans get zeros.
///
/// On a CPU vector instructions do this in the compute type. bfloat16 tokens in heads of usual widths
/// run on the tile unit (AMX) or a GPU where there is one: float32 factors keep 16 bits in products
/// with the state there. All else is `delta_rule_chunked_plain`.
torch::Tensor delta_rule_chunked(    // [B, T, Hv, Ev] as mixed
    const DeltaInputs& inputs,
    const std::vector<Span>& spans,
    const torch::Tensor& state = {});  // [B, Hv, Ek, Ev], changed in place

/// The same by libtorch's operations on any device: the definition.
/// Memory: about 40 [64, E] float32 tiles per head, 16 chunks at a time.
torch::Tensor delta_rule_chunked_plain(
    const DeltaInputs& inputs,
    const std::vector<Span>& spans,
    const torch::Tensor& state = {});

/// Whether `delta_rule_chunked` has the kernel for such tokens here.
bool has_chunk_kernel(const DeltaShape& shape, torch::ScalarType dtype, torch::Device device);

/// Token by token: row b takes its first row_tokens[b] tokens. A token's bits do not depend on
/// how many others come with it. The output of later tokens is zero.
torch::Tensor delta_rule_recurrent(  // [B, T, Hv, Ev] as mixed
    const DeltaInputs& inputs,
    const std::vector<int64_t>& row_tokens,
    const torch::Tensor& state);     // [B, Hv, Ek, Ev], changed in place

/// Every node of a tree continues the state of its parent, roots continue `state`, which stays as
/// it is. By the kernels of CPU and GPU the tree is walked depth first, so that a node has the bits
/// that `delta_rule_recurrent` gives the last token of its path; elsewhere as below. Memory: on the
/// CPU one state per level of the tree and thread; on a GPU one per row, head and nested fork.
torch::Tensor delta_rule_tree(       // [B, T, Hv, Ev] as mixed
    const DeltaInputs& inputs,
    const TreeLayout& tree,
    const torch::Tensor& state);     // [B, Hv, Ek, Ev]

/// The same by one triangular system for all nodes: the chunk form with the causal mask replaced
/// by the ancestor mask, and cumulative decays by sums along paths. Nothing is walked, so it
/// suits devices that are slow at that.
torch::Tensor delta_rule_tree_by_ancestors(
    const DeltaInputs& inputs,
    const TreeLayout& tree,
    const torch::Tensor& state);

}  // namespace draftsmith::ops
