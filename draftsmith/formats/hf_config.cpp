// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/formats/hf_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "draftsmith/base/error.h"
#include "draftsmith/formats/drafter_layouts.h"
#include "draftsmith/formats/json.h"

namespace draftsmith::formats {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 32;
// Far beyond any model, and a product of two widths, layers and bytes stays below an overflow.
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxLayers = 10000;
constexpr int64_t kMaxHeadDim = 10000;

[[noreturn]] void
fail(const JsonObject& json, std::string what, std::string expected, std::string got) {
  throw DataError(
      {.what = std::move(what),
       .expected = std::move(expected),
       .got = std::move(got),
       .where = json.where()});
}

/// The share of a head that rotates; every model but Qwen3.5 rotates whole heads.
double read_rotary_share(const JsonObject& json, bool may_be_partial) {
  const JsonObject owner =
      json.has("rope_parameters") ? json.object("rope_parameters") : JsonObject(json);
  const double fallback = may_be_partial ? 0.25 : 1;
  const double share =
      owner.number_or("partial_rotary_factor", json.number_or("partial_rotary_factor", fallback));
  const bool is_right = may_be_partial ? share > 0 && share <= 1 : share == 1;
  if (!is_right)
    fail(
        json, "partial_rotary_factor", may_be_partial ? "above 0, at most 1" : "1 for this model",
        fmt::format("{}", share));
  return share;
}

RopeSettings read_scaling(const JsonObject& json, RopeSettings rope) {
  rope.type = json.text_or("rope_type", json.text_or("type", "default"));
  if (rope.type == "default" && json.has("factor") && !json.has("rope_type") && !json.has("type"))
    fail(json, "rope_type", "the type that the factor belongs to", "none");
  const bool is_known = rope.type == "default" || rope.type == "linear" || rope.type == "llama3" ||
                        rope.type == "yarn";
  if (!is_known) fail(json, "rope type", "default, linear, llama3 or yarn", "'" + rope.type + "'");
  if (rope.type == "default") return rope;

  rope.factor = json.number("factor");
  if (rope.factor < 1)
    fail(json, "factor", "a number of at least 1", fmt::format("{}", rope.factor));
  if (rope.type != "linear")
    rope.original_max_position = json.integer("original_max_position_embeddings", 1, kMaxSize);
  if (rope.type == "llama3") {
    rope.low_freq_factor = json.number("low_freq_factor");
    rope.high_freq_factor = json.number("high_freq_factor");
    if (!(rope.high_freq_factor > rope.low_freq_factor && rope.low_freq_factor > 0))
      fail(
          json, "high_freq_factor", "more than low_freq_factor, both positive",
          fmt::format("{}", rope.high_freq_factor));
  }
  if (rope.type == "yarn") {
    rope.beta_fast = json.number_or("beta_fast", 32);
    rope.beta_slow = json.number_or("beta_slow", 1);
    if (!(rope.beta_fast >= rope.beta_slow && rope.beta_slow > 0))
      fail(
          json, "beta_fast", "at least beta_slow, both positive",
          fmt::format("{}", rope.beta_fast));
    if (json.has("attention_factor")) rope.attention_factor = json.number("attention_factor");
    for (const char* key : {"mscale", "mscale_all_dim"}) {
      if (json.has(key))
        fail(json, key, "no such key in yarn settings", json.value().at(key).dump());
    }
    if (!json.boolean_or("truncate", true)) fail(json, "truncate", "true", "false");
  }
  return rope;
}

/// Both spellings; `needs_theta` refuses a file without one instead of taking 10,000.
RopeSettings read_rope(const JsonObject& json, bool needs_theta) {
  RopeSettings rope;
  const bool is_nested = json.has("rope_parameters");
  const JsonObject owner = is_nested ? json.object("rope_parameters") : json;
  if (owner.has("rope_theta") || (needs_theta && !json.has("rope_theta"))) {
    rope.theta = owner.number("rope_theta");
  } else {
    rope.theta = json.number_or("rope_theta", rope.theta);
  }
  if (rope.theta <= 1) fail(json, "rope_theta", "more than 1", fmt::format("{}", rope.theta));
  if (is_nested) return read_scaling(owner, rope);
  if (json.has("rope_scaling")) return read_scaling(json.object("rope_scaling"), rope);
  return rope;
}

void read_sizes(const JsonObject& json, TransformerConfig& config) {
  config.vocab_size = json.integer("vocab_size", 1, INT32_MAX);
  config.hidden_size = json.integer("hidden_size", 1, kMaxWidth);
  config.intermediate_size = json.integer("intermediate_size", 1, kMaxWidth);
  config.num_layers = json.integer("num_hidden_layers", 1, kMaxLayers);
  config.num_heads = json.integer("num_attention_heads", 1, 10000);
  config.num_kv_heads = json.integer_or("num_key_value_heads", config.num_heads, 1, 10000);
  config.head_dim =
      json.integer_or("head_dim", config.hidden_size / config.num_heads, 1, kMaxHeadDim);
  config.rms_norm_eps = json.number_or("rms_norm_eps", 1e-6);
  config.has_attention_bias = json.boolean_or("attention_bias", false);
  config.has_mlp_bias = json.boolean_or("mlp_bias", false);
  config.has_tied_head = json.boolean_or("tie_word_embeddings", false);
  config.max_position_embeddings = json.integer_or("max_position_embeddings", 0, 0, kMaxSize);
  if (json.has("eos_token_id")) config.eos_token_ids = json.integers("eos_token_id");
  if (config.num_heads % config.num_kv_heads != 0)
    fail(
        json, "num_key_value_heads", fmt::format("a divisor of {} heads", config.num_heads),
        fmt::format("{}", config.num_kv_heads));
  if (config.head_dim % 2 != 0 || config.head_dim == 0 || config.head_dim > kMaxHeadDim)
    fail(
        json, "head_dim", fmt::format("an even number from 2 to {}", kMaxHeadDim),
        fmt::format("{}", config.head_dim));
  if (config.rms_norm_eps < 0)
    fail(json, "rms_norm_eps", "at least 0", fmt::format("{}", config.rms_norm_eps));
  if (json.text_or("hidden_act", "silu") != "silu")
    fail(json, "hidden_act", "silu", json.text("hidden_act"));
}

void check_layer_ids(const JsonObject& json, const DrafterConfig& config) {
  const auto& ids = config.target_layer_ids;
  const bool is_ascending =
      !ids.empty() && ids.front() >= 0 &&
      std::adjacent_find(ids.begin(), ids.end(), std::greater_equal<>()) == ids.end();
  const int64_t num_layers = config.num_target_layers == 0 ? kMaxLayers : config.num_target_layers;
  const bool is_inside = ids.empty() || ids.back() <= num_layers - 2;
  if (!is_ascending || !is_inside)
    fail(
        json, "target_layer_ids", "distinct ascending ids below the target's last layer",
        fmt::format("{}", ids));
}

void read_layer_types(const JsonObject& json, DrafterConfig& config) {
  const auto types = json.texts("layer_types");
  if (static_cast<int64_t>(types.size()) != config.num_layers)
    fail(
        json, "layer_types", fmt::format("{} entries", config.num_layers),
        fmt::format("{}", types.size()));
  for (const std::string& type : types) {
    if (type != "full_attention" && type != "sliding_attention")
      fail(json, "layer_types", "full_attention or sliding_attention", "'" + type + "'");
    config.is_sliding.push_back(type == "sliding_attention");
  }
  if (config.has_sliding_layers())
    config.sliding_window = json.integer("sliding_window", 1, kMaxSize);
}

void read_target_layer_types(const JsonObject& json, TargetConfig& config) {
  const auto num_layers = static_cast<size_t>(config.num_layers);
  config.is_linear.assign(num_layers, false);
  if (!json.has("layer_types")) {
    const int64_t interval = json.integer_or("full_attention_interval", 4, 1, 10000);
    for (size_t i = 0; i < num_layers && config.is_hybrid(); ++i)
      config.is_linear[i] = static_cast<int64_t>(i + 1) % interval != 0;
    return;
  }
  const auto types = json.texts("layer_types");
  if (types.size() != num_layers)
    fail(
        json, "layer_types", fmt::format("{} entries", num_layers),
        fmt::format("{}", types.size()));
  for (size_t i = 0; i < num_layers; ++i) {
    config.is_linear[i] = config.is_hybrid() && types[i] == "linear_attention";
    if (!config.is_linear[i] && types[i] != "full_attention")
      fail(
          json, "layer_types",
          config.is_hybrid() ? "linear_attention or full_attention"
                             : "full_attention in such a target",
          "'" + types[i] + "'");
  }
}

void read_linear_attention(const JsonObject& json, TargetConfig& config) {
  auto& linear = config.linear;
  linear.num_key_heads = json.integer("linear_num_key_heads", 1, 10000);
  linear.num_value_heads = json.integer("linear_num_value_heads", 1, 10000);
  linear.key_head_dim = json.integer("linear_key_head_dim", 1, 10000);
  linear.value_head_dim = json.integer("linear_value_head_dim", 1, 10000);
  linear.conv_taps = json.integer("linear_conv_kernel_dim", 1, 16);
  if (linear.num_value_heads % linear.num_key_heads != 0)
    fail(
        json, "linear_num_value_heads",
        fmt::format("a multiple of {} key heads", linear.num_key_heads),
        fmt::format("{}", linear.num_value_heads));
  if (!json.boolean_or("attn_output_gate", true)) fail(json, "attn_output_gate", "true", "false");
}

}  // namespace

bool DrafterConfig::has_sliding_layers() const {
  return std::find(is_sliding.begin(), is_sliding.end(), true) != is_sliding.end();
}

bool DrafterConfig::is_causal_block(int64_t layer) const {
  return is_causal.value_or(is_sliding.at(static_cast<size_t>(layer)));
}

TargetConfig read_target_config(const fs::path& folder) {
  const auto root = JsonObject::from_file(folder / "config.json");
  const JsonObject json = root.has("text_config") ? root.object("text_config") : root;
  TargetConfig config;
  config.model_type = json.text_or("model_type", root.text_or("model_type", ""));
  if (config.model_type == "qwen3_5") config.model_type = "qwen3_5_text";
  if (config.model_type != "llama" && config.model_type != "qwen3" && !config.is_hybrid())
    fail(
        json, "model_type", "llama, qwen3, qwen3_5 or qwen3_5_text", "'" + config.model_type + "'");
  if (config.is_hybrid())
    json.integer("head_dim", 1, kMaxHeadDim);  // not hidden_size / heads there
  read_sizes(json, config);
  // The whole model's word on its head counts, not that of its text part.
  if (root.has("tie_word_embeddings"))
    config.has_tied_head = root.boolean_or("tie_word_embeddings", false);
  if (config.eos_token_ids.empty() && root.has("eos_token_id"))
    config.eos_token_ids = root.integers("eos_token_id");
  config.rope = read_rope(json, /*needs_theta=*/false);
  config.rotary_dim = static_cast<int64_t>(
      static_cast<double>(config.head_dim) * read_rotary_share(json, config.is_hybrid()));
  if (config.rotary_dim < 2 || config.rotary_dim % 2 != 0)
    fail(
        json, "partial_rotary_factor", "an even number of rotated elements",
        fmt::format("{} of {}", config.rotary_dim, config.head_dim));
  read_target_layer_types(json, config);
  if (config.is_hybrid()) read_linear_attention(json, config);
  return config;
}

DrafterConfig read_drafter_config(const fs::path& folder) {
  const JsonObject json = read_drafter_json(folder);
  DrafterConfig config;
  config.model_type = json.text("model_type");
  if (config.model_type != "qwen3")
    fail(json, "model_type", "qwen3", "'" + config.model_type + "'");
  json.integer("head_dim", 1, kMaxHeadDim);  // no fallback: a guess here rotates the wrong width
  json.integer("num_key_value_heads", 1, 10000);
  json.number("rms_norm_eps");
  read_sizes(json, config);
  config.rope = read_rope(json, /*needs_theta=*/true);
  read_rotary_share(json, /*may_be_partial=*/false);

  const JsonObject inner = json.object("dflash_config");
  const JsonObject& owner = inner.has("block_size") ? inner : json;
  config.block_size = owner.integer("block_size", 2, 4096);
  config.mask_token_id = inner.integer("mask_token_id", 0, config.vocab_size - 1);
  config.target_layer_ids = inner.integers("target_layer_ids");
  const JsonObject& counter = inner.has("num_target_layers") ? inner : json;
  config.num_target_layers = counter.integer_or("num_target_layers", 0, 1, kMaxLayers);
  check_layer_ids(json, config);
  read_layer_types(json, config);
  for (const JsonObject* place : {&json, &inner})  // NeMo, vLLM
    if (place->has("causal")) config.is_causal = place->boolean_or("causal", false);
  if (json.has("is_causal")) config.is_causal = json.boolean_or("is_causal", false);
  config.initializer_range = json.number_or("initializer_range", 0.02);
  return config;
}

std::vector<int64_t> read_stop_token_ids(const fs::path& folder) {
  if (fs::exists(folder / "generation_config.json")) {
    const auto generation = JsonObject::from_file(folder / "generation_config.json");
    if (generation.has("eos_token_id")) return generation.integers("eos_token_id");
  }
  const auto json = JsonObject::from_file(folder / "config.json");
  if (json.has("eos_token_id")) return json.integers("eos_token_id");
  if (!json.has("text_config")) return {};
  const auto text = json.object("text_config");
  return text.has("eos_token_id") ? text.integers("eos_token_id") : std::vector<int64_t>{};
}

std::vector<int64_t> choose_target_layer_ids(int64_t num_target_layers, int64_t count) {
  std::vector<int64_t> ids;
  if (count == 1) ids.push_back(num_target_layers / 2);
  for (int64_t j = 0; count > 1 && j < count; ++j) {
    const double exact =
        1.0 + static_cast<double>(j * (num_target_layers - 4)) / static_cast<double>(count - 1);
    // std::nearbyint rounds half to even in the default rounding mode, as Python does.
    ids.push_back(static_cast<int64_t>(std::nearbyint(exact)));
  }
  const bool is_usable =
      !ids.empty() && ids.front() >= 0 && ids.back() <= num_target_layers - 2 &&
      std::adjacent_find(ids.begin(), ids.end(), std::greater_equal<>()) == ids.end();
  if (!is_usable) {
    throw ConfigError(
        {.what = "drafter.target_layer_ids",
         .expected = fmt::format("{} distinct layers of the target's {}", count, num_target_layers),
         .got = fmt::format("{} from the formula", ids),
         .hint = "naming the layers, for example --drafter.target_layer_ids=0,2"});
  }
  return ids;
}

}  // namespace draftsmith::formats
