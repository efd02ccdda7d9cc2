// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/model/layers.h"

#include "draftsmith/base/error.h"
#include "draftsmith/ops/rms_norm.h"
#include "draftsmith/ops/swiglu.h"

namespace draftsmith::model {
namespace {

torch::Tensor find(const WeightMap& weights, const std::string& name) {
  const auto found = weights.find(name);
  return found == weights.end() ? torch::Tensor() : found->second;
}

Linear find_linear(const WeightMap& weights, const std::string& name) {
  const Linear linear{find(weights, name + ".weight"), find(weights, name + ".bias")};
  DS_CHECK(linear.weight.defined());
  return linear;
}

torch::Tensor split_heads(const torch::Tensor& x, int64_t head_dim) {
  return x.view({x.size(0), x.size(1), x.size(2) / head_dim, head_dim});
}

}  // namespace

DecoderLayer DecoderLayer::bind(
    const WeightMap& weights,
    const std::string& prefix,
    const formats::TransformerConfig& config) {
  DecoderLayer layer;
  layer.eps = config.rms_norm_eps;
  layer.head_dim = config.head_dim;
  layer.input_norm = find(weights, prefix + "input_layernorm.weight");
  if (weights.count(prefix + "self_attn.q_proj.weight") != 0) {
    layer.q_proj = find_linear(weights, prefix + "self_attn.q_proj");
    layer.k_proj = find_linear(weights, prefix + "self_attn.k_proj");
    layer.v_proj = find_linear(weights, prefix + "self_attn.v_proj");
    layer.o_proj = find_linear(weights, prefix + "self_attn.o_proj");
    layer.q_norm = find(weights, prefix + "self_attn.q_norm.weight");
    layer.k_norm = find(weights, prefix + "self_attn.k_norm.weight");
  }
  layer.post_attention_norm = find(weights, prefix + "post_attention_layernorm.weight");
  layer.gate_proj = find_linear(weights, prefix + "mlp.gate_proj");
  layer.up_proj = find_linear(weights, prefix + "mlp.up_proj");
  layer.down_proj = find_linear(weights, prefix + "mlp.down_proj");
  DS_CHECK(layer.input_norm.defined() && layer.post_attention_norm.defined());
  return layer;
}

torch::Tensor DecoderLayer::normalise(const torch::Tensor& x, const torch::Tensor& weight) const {
  return has_zero_centred_norms ? ops::zero_centred_rms_norm(x, weight, eps)
                                : ops::rms_norm(x, weight, eps);
}

Queries DecoderLayer::make_gated_queries(const torch::Tensor& x, const ops::RotaryAngles& angles)
    const {
  auto heads = split_heads(q_proj(x), has_output_gate ? 2 * head_dim : head_dim);
  torch::Tensor gate;
  if (has_output_gate) {
    gate = heads.narrow(-1, head_dim, head_dim);
    heads = heads.narrow(-1, 0, head_dim);
  }
  if (q_norm.defined()) heads = normalise(heads, q_norm);
  return {ops::apply_rotary(heads, angles), gate};
}

torch::Tensor DecoderLayer::make_keys(const torch::Tensor& x, const ops::RotaryAngles& angles)
    const {
  auto keys = split_heads(k_proj(x), head_dim);
  if (k_norm.defined()) keys = normalise(keys, k_norm);
  return ops::apply_rotary(keys, angles);
}

torch::Tensor DecoderLayer::make_values(const torch::Tensor& x) const {
  return split_heads(v_proj(x), head_dim);
}

torch::Tensor DecoderLayer::finish(const torch::Tensor& hidden, const torch::Tensor& attended)
    const {
  return add_mlp(hidden + o_proj(attended.flatten(2)));
}

torch::Tensor DecoderLayer::add_mlp(const torch::Tensor& hidden) const {
  const auto normed = normalise(hidden, post_attention_norm);
  return hidden + down_proj(ops::swiglu(gate_proj(normed), up_proj(normed)));
}

}  // namespace draftsmith::model
