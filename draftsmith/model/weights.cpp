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

void add_attention(
    std::vector<WeightSpec>& specs,
    const formats::TransformerConfig& config,
    const std::string& prefix,
    bool has_qk_norm,
    bool has_output_gate) {
  const int64_t D = config.hidden_size;
  const int64_t query_width = config.num_heads * config.head_dim;
  const int64_t key_width = config.num_kv_heads * config.head_dim;
  const bool has_bias = config.has_attention_bias;
  const int64_t gated_width = has_output_gate ? 2 * query_width : query_width;
  add_matrix(specs, prefix + "self_attn.q_proj", gated_width, D, has_bias);
  add_matrix(specs, prefix + "self_attn.k_proj", key_width, D, has_bias);
  add_matrix(specs, prefix + "self_attn.v_proj", key_width, D, has_bias);
  add_matrix(specs, prefix + "self_attn.o_proj", D, query_width, has_bias);
  if (has_qk_norm) {
    add_norm(specs, prefix + "self_attn.q_norm", config.head_dim);
    add_norm(specs, prefix + "self_attn.k_norm", config.head_dim);
  }
}

void add_linear_attention(
    std::vector<WeightSpec>& specs,
    const formats::TargetConfig& config,
    const std::string& prefix) {
  const auto& linear = config.linear;
  const int64_t D = config.hidden_size;
  const int64_t value_width = linear.num_value_heads * linear.value_head_dim;
  const int64_t width = 2 * linear.num_key_heads * linear.key_head_dim + value_width;
  add_matrix(specs, prefix + "in_proj_qkv", width, D, false);
  add_matrix(specs, prefix + "in_proj_z", value_width, D, false);
  add_matrix(specs, prefix + "in_proj_b", linear.num_value_heads, D, false);
  add_matrix(specs, prefix + "in_proj_a", linear.num_value_heads, D, false);
  specs.push_back(
      {prefix + "conv1d.weight", {width, 1, linear.conv_taps}, WeightKind::kMatrix});
  specs.push_back({prefix + "A_log", {linear.num_value_heads}, WeightKind::kFloat32});
  specs.push_back({prefix + "dt_bias", {linear.num_value_heads}, WeightKind::kFloat32});
  add_norm(specs, prefix + "norm", linear.value_head_dim);
  add_matrix(specs, prefix + "out_proj", D, value_width, false);
}

void add_mlp(
    std::vector<WeightSpec>& specs,
    const formats::TransformerConfig& config,
    const std::string& prefix) {
  const int64_t D = config.hidden_size;
  add_norm(specs, prefix + "post_attention_layernorm", D);
  add_matrix(specs, prefix + "mlp.gate_proj", config.intermediate_size, D, config.has_mlp_bias);
  add_matrix(specs, prefix + "mlp.up_proj", config.intermediate_size, D, config.has_mlp_bias);
  add_matrix(specs, prefix + "mlp.down_proj", D, config.intermediate_size, config.has_mlp_bias);
}

/// Parts of a checkpoint beside its decoder.
bool is_other_part(const std::string& name) {
  return name.rfind("mtp.", 0) == 0 || name.rfind("visual.", 0) == 0 ||
         name.rfind("model.visual.", 0) == 0;
}

/// The first five and how many there are.
std::string list_names(std::vector<std::string> names) {
  const size_t total = names.size();
  if (total > 5) names.resize(5);
  return fmt::format(
      "{} tensors are not used: {}{}", total, fmt::join(names, ", "), total > 5 ? ", ..." : "");
}

}  // namespace

std::vector<WeightSpec> list_target_weights(const formats::TargetConfig& config) {
  std::vector<WeightSpec> specs;
  const int64_t D = config.hidden_size;
  const std::string& base = config.weight_prefix;
  add_matrix(specs, base + "embed_tokens", config.vocab_size, D, false);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const auto prefix = fmt::format("{}layers.{}.", base, i);
    add_norm(specs, prefix + "input_layernorm", D);
    if (config.is_linear[static_cast<size_t>(i)]) {
      add_linear_attention(specs, config, prefix + "linear_attn.");
    } else {
      add_attention(specs, config, prefix, config.has_qk_norm(), config.is_hybrid());
    }
    add_mlp(specs, config, prefix);
  }
  add_norm(specs, base + "norm", D);
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
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const auto prefix = fmt::format("layers.{}.", i);
    add_norm(specs, prefix + "input_layernorm", D);
    add_attention(specs, config, prefix, /*has_qk_norm=*/true, /*has_output_gate=*/false);
    add_mlp(specs, config, prefix);
  }
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
    weights[spec.name] = tensor.to(spec.kind == WeightKind::kFloat32 ? torch::kFloat : dtype);
  }
  std::vector<std::string> unused;
  std::vector<std::string> other_parts;
  for (const std::string& name : reader.names()) {
    const bool is_known =
        std::find(known_extras.begin(), known_extras.end(), name) != known_extras.end();
    if (weights.count(name) != 0 || is_known) continue;
    (is_other_part(name) ? other_parts : unused).push_back(name);
  }
  if (!other_parts.empty()) log_info("{}: {}", reader.where(), list_names(std::move(other_parts)));
  if (!unused.empty())
    log_warning(fmt::format("{}: {}", reader.where(), list_names(std::move(unused))));
  return weights;
}

}  // namespace draftsmith::model
