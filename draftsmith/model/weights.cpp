// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/model/weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "draftsmith/base/error.h"
#include "draftsmith/base/log.h"

namespace draftsmith::model {
namespace {

void add_matrix(
    std::vector<WeightSpec>& specs,
    const std::string& name,
    int64_t out,
    int64_t in,
    bool has_bias) {
  specs.push_back({name + ".weight", {out, in}, WeightKind::kMatrix});
  if (has_bias) specs.push_back({name + ".bias", {out}, WeightKind::kBias});
}

void add_norm(std::vector<WeightSpec>& specs, const std::string& name, int64_t width) {
  specs.push_back({name + ".weight", {width}, WeightKind::kNorm});
}

void add_layer(
    std::vector<WeightSpec>& specs,
    const formats::TransformerConfig& config,
    const std::string& prefix,
    bool has_qk_norm) {
  const int64_t D = config.hidden_size;
  const int64_t query_width = config.num_heads * config.head_dim;
  const int64_t key_width = config.num_kv_heads * config.head_dim;
  const bool has_bias = config.has_attention_bias;
  add_norm(specs, prefix + "input_layernorm", D);
  add_matrix(specs, prefix + "self_attn.q_proj", query_width, D, has_bias);
  add_matrix(specs, prefix + "self_attn.k_proj", key_width, D, has_bias);
  add_matrix(specs, prefix + "self_attn.v_proj", key_width, D, has_bias);
  add_matrix(specs, prefix + "self_attn.o_proj", D, query_width, has_bias);
  if (has_qk_norm) {
    add_norm(specs, prefix + "self_attn.q_norm", config.head_dim);
    add_norm(specs, prefix + "self_attn.k_norm", config.head_dim);
  }
  add_norm(specs, prefix + "post_attention_layernorm", D);
  add_matrix(specs, prefix + "mlp.gate_proj", config.intermediate_size, D, config.has_mlp_bias);
  add_matrix(specs, prefix + "mlp.up_proj", config.intermediate_size, D, config.has_mlp_bias);
  add_matrix(specs, prefix + "mlp.down_proj", D, config.intermediate_size, config.has_mlp_bias);
}

}  // namespace

std::vector<WeightSpec> list_target_weights(const formats::TargetConfig& config) {
  std::vector<WeightSpec> specs;
  const int64_t D = config.hidden_size;
  specs.push_back({"model.embed_tokens.weight", {config.vocab_size, D}, WeightKind::kMatrix});
  for (int64_t i = 0; i < config.num_layers; ++i)
    add_layer(specs, config, fmt::format("model.layers.{}.", i), config.has_qk_norm());
  add_norm(specs, "model.norm", D);
  if (!config.has_tied_head)
    specs.push_back({"lm_head.weight", {config.vocab_size, D}, WeightKind::kMatrix});
  return specs;
}

std::vector<WeightSpec> list_drafter_weights(const formats::DrafterConfig& config) {
  std::vector<WeightSpec> specs;
  const int64_t D = config.hidden_size;
  const auto F = static_cast<int64_t>(config.target_layer_ids.size()) * D;
  add_matrix(specs, "fc", D, F, false);
  add_norm(specs, "hidden_norm", D);
  for (int64_t i = 0; i < config.num_layers; ++i)
    add_layer(specs, config, fmt::format("layers.{}.", i), /*has_qk_norm=*/true);
  add_norm(specs, "norm", D);
  return specs;
}

WeightMap load_weights(
    const formats::SafetensorsReader& reader,
    const std::vector<WeightSpec>& specs,
    torch::ScalarType dtype,
    const std::vector<std::string>& known_extras) {
  WeightMap weights;
  for (const WeightSpec& spec : specs) {
    const auto tensor = reader.tensor(spec.name, spec.shape);
    if (!tensor.is_floating_point()) {
      throw DataError(
          {.what = spec.name,
           .expected = "BF16, F16 or F32",
           .got = c10::toString(tensor.scalar_type()),
           .where = reader.where()});
    }
    weights[spec.name] = tensor.to(dtype);
  }
  std::vector<std::string> unused;
  for (const std::string& name : reader.names()) {
    const bool is_known =
        std::find(known_extras.begin(), known_extras.end(), name) != known_extras.end();
    if (weights.count(name) == 0 && !is_known) unused.push_back(name);
  }
  if (!unused.empty()) {
    const size_t total = unused.size();
    if (total > 5) unused.resize(5);
    log_warning(fmt::format(
        "{}: {} tensors are not used: {}{}", reader.where(), total, fmt::join(unused, ", "),
        total > 5 ? ", ..." : ""));
  }
  return weights;
}

}  // namespace draftsmith::model
