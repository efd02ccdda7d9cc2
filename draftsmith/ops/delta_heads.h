// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "draftsmith/ops/delta_rule.h"
#include "draftsmith/ops/kernels.h"

namespace draftsmith::ops {

/// Tokens of one row as heads in the compute type, keys and queries normed and repeated for
/// every value head: what the definitions of the delta rule in matrices work on.
struct DeltaHeads {
  torch::Tensor query;  // [Hv, T, Ek]
  torch::Tensor key;    // [Hv, T, Ek]
  torch::Tensor value;  // [Hv, T, Ev]
  torch::Tensor decay;  // [Hv, T]
  torch::Tensor beta;   // [Hv, T]
};

DeltaHeads split_delta_heads(const DeltaInputs& inputs, const Span& span);

/// What kernels take, on any device: inputs side by side, and an output of zeros.
struct DenseDelta {
  explicit DenseDelta(const DeltaInputs& inputs);
  /// `spans`, `num_spans` of them, lie where the tensors do.
  DeltaChunkParams chunk_params(const Span* spans, int64_t num_spans, const torch::Tensor& state)
      const;

  DeltaShape shape;
  torch::Tensor mixed, decay, beta;
  torch::Tensor out;  // [B, T, Hv, Ev]
};

/// Errors: ShapeError for inputs or a state of wrong shape.
void check_delta_inputs(const DeltaInputs& inputs, const torch::Tensor& state);

/// The forms of the rule by the GPU's kernels; inputs are checked. Whether there are any: for
/// chunks `has_chunk_kernel`, for walks along lines and trees this.
bool has_gpu_walk(const DeltaInputs& inputs);
torch::Tensor run_chunks_on_gpu(
    const DeltaInputs& inputs,
    const std::vector<Span>& spans,
    const torch::Tensor& state);
torch::Tensor walk_on_gpu(
    const DeltaInputs& inputs,
    const std::vector<int64_t>& row_tokens,
    const torch::Tensor& state);
torch::Tensor walk_tree_on_gpu(
    const DeltaInputs& inputs,
    const TreeLayout& tree,
    const torch::Tensor& state);

}  // namespace draftsmith::ops
