// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <torch/types.h>

#include "draftsmith/model/weights.h"
#include "draftsmith/ops/linear.h"
#include "draftsmith/ops/rotary.h"

namespace draftsmith::model {

struct Linear {
  torch::Tensor weight;  // [out, in]
  torch::Tensor bias;    // [out] or undefined

  torch::Tensor operator()(const torch::Tensor& x) const { return ops::linear(x, weight, bias); }
};

/// Queries of some tokens, and what gates their attention's output if the layer has that.
struct Queries {
  torch::Tensor heads;  // [B, S, H, E] normed (if the layer has q/k norms) and rotated
  torch::Tensor gate;   // [B, S, H, E] before its sigmoid, or undefined
};

/// One decoder layer of a target or of the drafter; tensors are shared with the weight map. A
/// layer with another mixer than attention has only the norms and the MLP.
struct DecoderLayer {
  torch::Tensor input_norm;  // [D]
  Linear q_proj, k_proj, v_proj, o_proj;
  torch::Tensor q_norm, k_norm;       // [E] or undefined
  torch::Tensor post_attention_norm;  // [D]
  Linear gate_proj, up_proj, down_proj;
  double eps = 1e-6;
  int64_t head_dim = 0;                 // E
  bool has_zero_centred_norms = false;  // all norms multiply by 1 + weight
  bool has_output_gate = false;         // q_proj gives each head its query, then its gate

  /// Finds the layer's tensors under `prefix`, for example "model.layers.3.".
  static DecoderLayer bind(
      const WeightMap& weights,
      const std::string& prefix,
      const formats::TransformerConfig& config);

  torch::Tensor normalise(const torch::Tensor& x, const torch::Tensor& weight) const;

  Queries make_gated_queries(
      const torch::Tensor& x,  // [B, S, D]
      const ops::RotaryAngles& angles) const;
  /// Projections as heads, normed (if the layer has q/k norms) and rotated.
  torch::Tensor make_queries(  // [B, S, H, E]
      const torch::Tensor& x,  // [B, S, D]
      const ops::RotaryAngles& angles) const {
    return make_gated_queries(x, angles).heads;
  }
  torch::Tensor make_keys(const torch::Tensor& x, const ops::RotaryAngles& angles) const;
  torch::Tensor make_values(const torch::Tensor& x) const;  // [B, S, G, E], no norm, no rotation

  /// hidden + o_proj(attended), then + MLP of its norm.
  torch::Tensor finish(
      const torch::Tensor& hidden,           // [B, S, D]
      const torch::Tensor& attended) const;  // [B, S, H, E]
  /// hidden + MLP of its norm: what follows any mixer.
  torch::Tensor add_mlp(const torch::Tensor& hidden) const;  // [B, S, D]
};

}  // namespace draftsmith::model
