// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <torch/types.h>

#include "draftsmith/formats/hf_config.h"
#include "draftsmith/model/layers.h"
#include "draftsmith/model/target_cache.h"
#include "draftsmith/ops/delta_rule.h"

namespace draftsmith::model {

/// The mixer of Qwen3.5's linear layers: short convolution, gated delta rule, gated norm. It
/// takes the normed input [B, T, D] and returns what is added to the residual stream.
struct DeltaNet {
  Linear in_proj_qkv;        // [C, D]
  Linear in_proj_z;          // [Hv Ev, D] output gate
  Linear in_proj_b;          // [Hv, D] beta before its sigmoid
  Linear in_proj_a;          // [Hv, D] decay before its softplus
  Linear out_proj;           // [D, Hv Ev]
  torch::Tensor conv;        // [taps, C]
  torch::Tensor log_decay;   // [Hv] fp32, the checkpoint's A_log
  torch::Tensor decay_bias;  // [Hv] fp32, the checkpoint's dt_bias
  torch::Tensor norm;        // [Ev]
  ops::DeltaShape shape;
  double eps = 1e-6;

  /// Finds the tensors under `prefix`, for example "model.layers.3.linear_attn.".
  static DeltaNet bind(
      const WeightMap& weights,
      const std::string& prefix,
      const formats::TargetConfig& config);

  /// Every span from an empty state.
  torch::Tensor run_spans(const torch::Tensor& x, const std::vector<ops::Span>& spans) const;

  /// The first tokens of every row; `state` becomes that after row_tokens[b] of them.
  torch::Tensor prefill(
      const torch::Tensor& x,
      const std::vector<int64_t>& row_tokens,
      DeltaState& state) const;

  /// Further tokens, one after another; `state` follows as in `prefill`.
  torch::Tensor step(
      const torch::Tensor& x,
      const std::vector<int64_t>& row_tokens,
      DeltaState& state) const;

  /// Trees below `state`, which stays; `pending` receives what a commit needs.
  torch::Tensor verify(
      const torch::Tensor& x,
      const ops::TreeLayout& tree,
      const DeltaState& state,
      PendingDelta& pending) const;

 private:
  int64_t taps() const { return conv.size(0); }
  ops::DeltaInputs make_inputs(const torch::Tensor& x, const torch::Tensor& mixed) const;
  torch::Tensor finish(const torch::Tensor& x, const torch::Tensor& values) const;
};

}  // namespace draftsmith::model
