// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/model/drafter_init.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include <ATen/CPUGeneratorImpl.h>

#include "draftsmith/base/error.h"
#include "draftsmith/base/log.h"
#include "draftsmith/base/random.h"
#include "draftsmith/formats/mask_token.h"
#include "draftsmith/ops/rms_norm.h"

namespace draftsmith::model {
namespace {

[[noreturn]] void fail_setting(std::string key, std::string expected, std::string got) {
  throw ConfigError(
      {.what = "drafter." + key, .expected = std::move(expected), .got = std::move(got)});
}

bool is_drafter_folder(const std::string& init) { return init != "random" && init != "target"; }

int64_t or_default(int64_t value, int64_t fallback) { return value > 0 ? value : fallback; }

void set_layer_types(const DrafterSettings& settings, formats::DrafterConfig& config) {
  for (const std::string& type : settings.layer_types) {
    if (type != "full_attention" && type != "sliding_attention")
      fail_setting("layer_types", "full_attention or sliding_attention", "'" + type + "'");
    config.is_sliding.push_back(type == "sliding_attention");
  }
  const auto count = static_cast<size_t>(config.num_layers);
  if (config.is_sliding.empty()) config.is_sliding.assign(count, false);
  if (config.is_sliding.size() != count)
    fail_setting(
        "layer_types", fmt::format("{} entries, one per layer", count),
        fmt::format("{}", config.is_sliding.size()));
  if (config.has_sliding_layers()) config.sliding_window = settings.sliding_window;
}

int64_t resolve_mask_token(
    const DrafterSettings& settings,
    int64_t vocab_size,
    const std::filesystem::path& folder) {
  if (settings.mask_token_id >= vocab_size)
    fail_setting(
        "mask_token_id", fmt::format("an id below {}", vocab_size),
        fmt::format("{}", settings.mask_token_id));
  if (settings.mask_token_id >= 0) return settings.mask_token_id;
  const auto token = formats::choose_mask_token(folder, vocab_size);
  if (token.id < 0)
    fail_setting(
        "mask_token_id", "an id, since the target has no tokenizer to choose from", "none");
  log_info("mask token: id {}, {}", token.id, token.source);
  if (token.is_risky) {
    log_warning(
        "a mask token that means something else to the target costs acceptance; set "
        "drafter.mask_token_id to a token that never occurs in the data");
  }
  return token.id;
}

at::Generator make_generator(uint64_t seed, const std::string& name) {
  return at::make_generator<at::CPUGeneratorImpl>(hash_key({seed, std::hash<std::string>{}(name)}));
}

WeightMap
make_random_weights(const formats::DrafterConfig& config, torch::ScalarType dtype, uint64_t seed) {
  WeightMap weights;
  for (const WeightSpec& spec : list_drafter_weights(config)) {
    auto tensor = torch::zeros(spec.shape, torch::kFloat);
    if (spec.kind == WeightKind::kNorm) tensor.fill_(1);
    if (spec.kind == WeightKind::kMatrix)
      tensor.normal_(0, config.initializer_range, make_generator(seed, spec.name));
    weights[spec.name] = tensor.to(dtype);
  }
  return weights;
}

/// Mean over positions and heads of the root mean square that a projection's heads have: the
/// size that an RMS norm with a constant weight of this value keeps.
double mean_head_size(const Linear& projection, const torch::Tensor& normed, int64_t head_dim) {
  const auto heads = projection(normed).to(torch::kFloat).unflatten(-1, {-1, head_dim});
  return heads.square().mean(-1).sqrt().mean().item<double>();
}

void check_same_sizes(const formats::DrafterConfig& config, const formats::TargetConfig& target) {
  const auto check = [](const char* key, int64_t value, int64_t wanted) {
    if (value != wanted)
      fail_setting(
          key, fmt::format("the target's {}, since drafter.init is target", wanted),
          fmt::format("{}", value));
  };
  check("num_attention_heads", config.num_heads, target.num_heads);
  check("num_key_value_heads", config.num_kv_heads, target.num_kv_heads);
  check("head_dim", config.head_dim, target.head_dim);
  check("intermediate_size", config.intermediate_size, target.intermediate_size);
  if (config.num_layers >= target.num_layers)
    fail_setting(
        "num_layers", fmt::format("fewer than the target's {}", target.num_layers),
        fmt::format("{}", config.num_layers));
  if (target.has_mlp_bias)
    fail_setting("init", "random, since the target's MLP has biases", "target");
}

/// Overwrites random weights with those of the target's last layers.
void copy_from_target(
    const formats::DrafterConfig& config,
    const Target& target,
    const torch::Tensor& sample_ids,
    WeightMap& weights) {
  const at::NoGradGuard no_grad;
  check_same_sizes(config, target.config());
  const int64_t first = target.config().num_layers - config.num_layers;
  std::vector<int64_t> inputs;  // layers whose output enters the copied layers
  for (int64_t i = 0; i < config.num_layers; ++i)
    inputs.push_back(first + i - 1);
  const auto states = target.forward(sample_ids, inputs).features.split(config.hidden_size, -1);

  const auto put = [&](const std::string& name, const torch::Tensor& value) {
    if (value.defined()) weights.at(name).copy_(value);
  };
  auto context_norm = torch::zeros({config.hidden_size}, torch::kFloat);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const DecoderLayer& layer = target.layers()[static_cast<size_t>(first + i)];
    const std::string prefix = fmt::format("layers.{}.", i);
    const std::pair<const char*, const Linear*> projections[] = {
        {"self_attn.q_proj", &layer.q_proj}, {"self_attn.k_proj", &layer.k_proj},
        {"self_attn.v_proj", &layer.v_proj}, {"self_attn.o_proj", &layer.o_proj},
        {"mlp.gate_proj", &layer.gate_proj}, {"mlp.up_proj", &layer.up_proj},
        {"mlp.down_proj", &layer.down_proj}};
    for (const auto& [name, projection] : projections) {
      put(prefix + name + ".weight", projection->weight);
      if (projection->bias.defined()) put(prefix + name + ".bias", projection->bias);
    }
    put(prefix + "input_layernorm.weight", layer.input_norm);
    put(prefix + "post_attention_layernorm.weight", layer.post_attention_norm);
    context_norm += layer.input_norm.to(torch::kFloat) / static_cast<double>(config.num_layers);
    if (layer.q_norm.defined()) {
      put(prefix + "self_attn.q_norm.weight", layer.q_norm);
      put(prefix + "self_attn.k_norm.weight", layer.k_norm);
    } else {
      const auto normed =
          ops::rms_norm(states[static_cast<size_t>(i)], layer.input_norm, layer.eps);
      weights.at(prefix + "self_attn.q_norm.weight")
          .fill_(mean_head_size(layer.q_proj, normed, config.head_dim));
      weights.at(prefix + "self_attn.k_norm.weight")
          .fill_(mean_head_size(layer.k_proj, normed, config.head_dim));
    }
  }
  put("norm.weight", target.final_norm());
  put("hidden_norm.weight", context_norm);
  auto& fc = weights.at("fc.weight");
  fc.zero_();
  fc.narrow(1, fc.size(1) - config.hidden_size, config.hidden_size).fill_diagonal_(1);
}

/// Some trainers store copies of the target's embedding and head beside the drafter. We use the
/// target's, so a copy that differs belongs to another target or was trained.
void check_borrowed_tensors(const Target& target, const std::string& folder) {
  const auto reader = formats::SafetensorsReader::open_folder(folder);
  const auto check = [&](const char* name, const torch::Tensor& own) {
    if (!reader.has(name)) return;
    const auto copy = reader.tensor(name);
    const bool is_equal =
        copy.sizes() == own.sizes() && copy.to(torch::kBFloat16).equal(own.to(torch::kBFloat16));
    if (is_equal) return;
    throw DataError(
        {.what = name,
         .expected = "the target's own, to the precision of bfloat16",
         .got = "another tensor",
         .where = folder,
         .hint = "the target that this drafter was made for"});
  };
  const auto all_ids = torch::arange(target.config().vocab_size, torch::kLong);
  if (reader.has("embed_tokens.weight"))
    check("embed_tokens.weight", target.embed(all_ids.unsqueeze(0))[0]);
  check("lm_head.weight", target.lm_head());
}

}  // namespace

void check_fits_target(
    const formats::DrafterConfig& config,
    const formats::TargetConfig& target,
    const std::string& where) {
  const auto check = [&](const char* key, int64_t value, int64_t wanted) {
    if (value == wanted) return;
    throw DataError(
        {.what = key,
         .expected = fmt::format("the target's {}", wanted),
         .got = fmt::format("{}", value),
         .where = where,
         .hint = "the target that this drafter was made for"});
  };
  check("hidden_size", config.hidden_size, target.hidden_size);
  check("vocab_size", config.vocab_size, target.vocab_size);
  if (config.num_target_layers > 0)
    check("num_target_layers", config.num_target_layers, target.num_layers);
  if (config.target_layer_ids.back() > target.num_layers - 2) {
    throw DataError(
        {.what = "target_layer_ids",
         .expected = fmt::format("ids up to {}", target.num_layers - 2),
         .got = fmt::format("{}", config.target_layer_ids),
         .where = where,
         .hint = "the target that this drafter was made for"});
  }
}

formats::DrafterConfig make_drafter_config(
    const DrafterSettings& settings,
    const formats::TargetConfig& target,
    const std::filesystem::path& target_folder) {
  if (is_drafter_folder(settings.init)) {
    auto loaded = formats::read_drafter_config(settings.init);
    check_fits_target(loaded, target, settings.init);
    return loaded;
  }
  formats::DrafterConfig config;
  static_cast<formats::TransformerConfig&>(config) = target;
  config.model_type = "qwen3";
  if (settings.init == "target" && target.is_hybrid())
    fail_setting(
        "init", "random or a drafter, since the target's layers are of another kind", "target");
  config.num_layers = settings.num_layers;
  config.num_heads = or_default(settings.num_attention_heads, target.num_heads);
  config.num_kv_heads = or_default(settings.num_key_value_heads, target.num_kv_heads);
  config.head_dim = or_default(settings.head_dim, target.head_dim);
  config.intermediate_size = or_default(settings.intermediate_size, target.intermediate_size);
  config.has_attention_bias = settings.init == "target" && target.has_attention_bias;
  config.has_mlp_bias = false;
  config.has_tied_head = false;
  if (config.num_heads % config.num_kv_heads != 0)
    fail_setting(
        "num_key_value_heads", fmt::format("a divisor of {} heads", config.num_heads),
        fmt::format("{}", config.num_kv_heads));
  if (config.head_dim % 2 != 0)
    fail_setting("head_dim", "an even number", fmt::format("{}", config.head_dim));
  config.block_size = settings.block_size;
  config.target_layer_ids =
      settings.target_layer_ids.empty()
          ? formats::choose_target_layer_ids(target.num_layers, config.num_layers)
          : settings.target_layer_ids;
  if (std::adjacent_find(
          config.target_layer_ids.begin(), config.target_layer_ids.end(), std::greater_equal<>()) !=
      config.target_layer_ids.end())
    fail_setting(
        "target_layer_ids", "distinct ids in ascending order",
        fmt::format("{}", config.target_layer_ids));
  check_layer_ids(target, config.target_layer_ids);
  config.num_target_layers = target.num_layers;
  config.is_causal = settings.is_causal;
  set_layer_types(settings, config);
  config.mask_token_id = resolve_mask_token(settings, target.vocab_size, target_folder);
  return config;
}

Drafter build_drafter(
    const DrafterSettings& settings,
    formats::DrafterConfig config,
    const Target& target,
    const torch::Tensor& sample_ids,
    uint64_t seed) {
  const auto dtype = parse_dtype(settings.dtype);
  if (is_drafter_folder(settings.init)) {
    auto drafter = Drafter::load(settings.init, dtype);
    check_borrowed_tensors(target, settings.init);
    return drafter;
  }
  auto weights = make_random_weights(config, dtype, seed);
  if (settings.init == "target") copy_from_target(config, target, sample_ids, weights);
  return {std::move(config), std::move(weights)};
}

Drafter make_drafter(
    const DrafterSettings& settings,
    const TargetSettings& target_settings,
    const Target& target,
    const torch::Tensor& sample_ids,
    uint64_t seed) {
  auto config = make_drafter_config(settings, target.config(), target_settings.path);
  return build_drafter(settings, std::move(config), target, sample_ids, seed);
}

}  // namespace draftsmith::model
