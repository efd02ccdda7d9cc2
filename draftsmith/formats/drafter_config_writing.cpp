// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/formats/drafter_config_writing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "draftsmith/base/error.h"
#include "draftsmith/formats/json.h"

namespace draftsmith::formats {
namespace {

constexpr std::array<std::pair<const char*, DrafterReader>, 5> kReaders = {
    {{"zlab", DrafterReader::kZlab},
     {"specforge", DrafterReader::kSpecForge},
     {"sglang", DrafterReader::kSglang},
     {"vllm", DrafterReader::kVllm},
     {"speculators", DrafterReader::kSpeculators}}};

const char* reader_name(DrafterReader reader) {
  for (const auto& [name, value] : kReaders)
    if (value == reader) return name;
  DS_CHECK(false);
  return "";
}

Json rope_scaling_of(const RopeSettings& rope) {
  Json json = {{"rope_type", rope.type}};
  if (rope.type != "default") json["factor"] = rope.factor;
  if (rope.type == "llama3" || rope.type == "yarn")
    json["original_max_position_embeddings"] = rope.original_max_position;
  if (rope.type == "llama3") {
    json["low_freq_factor"] = rope.low_freq_factor;
    json["high_freq_factor"] = rope.high_freq_factor;
  }
  if (rope.type == "yarn") {
    json["beta_fast"] = rope.beta_fast;
    json["beta_slow"] = rope.beta_slow;
    if (rope.attention_factor) json["attention_factor"] = *rope.attention_factor;
  }
  return json;
}

Json eos_of(const DrafterConfig& config) {
  const auto& ids = config.eos_token_ids;
  if (ids.empty()) return Json();
  return ids.size() == 1 ? Json(ids.front()) : Json(ids);
}

/// The keys that a Qwen3 config has: everything but what is special to DFlash.
Json layer_config_of(const DrafterConfig& config) {
  Json layer_types = Json::array();
  for (const bool is_sliding : config.is_sliding)
    layer_types.push_back(is_sliding ? "sliding_attention" : "full_attention");
  const Json rope = rope_scaling_of(config.rope);
  Json rope_parameters = rope;
  rope_parameters["rope_theta"] = config.rope.theta;
  return {
      {"model_type", "qwen3"},
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.intermediate_size},
      {"num_hidden_layers", config.num_layers},
      {"num_attention_heads", config.num_heads},
      {"num_key_value_heads", config.num_kv_heads},
      {"head_dim", config.head_dim},
      {"hidden_act", "silu"},
      {"layer_types", layer_types},
      {"sliding_window", config.has_sliding_layers() ? Json(config.sliding_window) : Json()},
      {"use_sliding_window", config.has_sliding_layers()},
      {"max_window_layers", config.num_layers},
      {"rope_theta", config.rope.theta},
      {"rope_scaling", config.rope.type == "default" ? Json() : rope},
      {"rope_parameters", rope_parameters},
      {"max_position_embeddings", config.max_position_embeddings},
      {"rms_norm_eps", config.rms_norm_eps},
      {"initializer_range", config.initializer_range},
      {"attention_bias", config.has_attention_bias},
      {"attention_dropout", 0.0},
      {"vocab_size", config.vocab_size},
      {"tie_word_embeddings", false},
      {"use_cache", true},
      {"bos_token_id", Json()},
      {"eos_token_id", eos_of(config)},
      {"pad_token_id", Json()}};
}

/// Whether `is_causal` says of some layer what its type does not say.
bool is_causal_against_types(const DrafterConfig& config) {
  return config.is_causal &&
         std::find(config.is_sliding.begin(), config.is_sliding.end(), !*config.is_causal) !=
             config.is_sliding.end();
}

Json usual_config(const DrafterConfig& config, const std::string& dtype) {
  Json json = {
      {"architectures", {"DFlashDraftModel"}},
      {"auto_map", {{"AutoModel", "dflash.DFlashDraftModel"}}},
      {"dtype", dtype},
      {"block_size", config.block_size},
      {"num_target_layers", config.num_target_layers},
      {"dflash_config",
       {{"block_size", config.block_size},
        {"mask_token_id", config.mask_token_id},
        {"target_layer_ids", config.target_layer_ids}}}};
  if (config.num_target_layers == 0) json.erase("num_target_layers");
  json.update(layer_config_of(config));
  if (is_causal_against_types(config)) json["is_causal"] = *config.is_causal;
  return json;
}

Json speculators_config(const DrafterConfig& config, const Verifier& verifier) {
  std::vector<int64_t> ids = config.target_layer_ids;
  for (int64_t& id : ids)
    id += 1;  // there an id names the layer whose input is captured
  // In full layers slots see the whole block whatever the flag says; where no layer slides, true
  // is what they do, and vLLM takes the flag for all layers.
  const bool is_non_causal = !config.has_sliding_layers() || config.is_causal == false;
  const Json proposal = {
      {"proposal_type", "greedy"},
      {"speculative_tokens", config.block_size - 1},
      {"verifier_accept_k", 1},
      {"accept_tolerance", 0.0}};
  return {
      {"architectures", {"DFlashSpeculator"}},
      {"speculators_model_type", "dflash"},
      {"speculators_config",
       {{"algorithm", "dflash"},
        {"default_proposal_method", "greedy"},
        {"proposal_methods", Json::array({proposal})},
        {"verifier",
         {{"name_or_path", verifier.name}, {"architectures", verifier.architectures}}}}},
      {"dtype", "bfloat16"},
      {"block_size", config.block_size},
      {"mask_token_id", config.mask_token_id},
      {"aux_hidden_state_layer_ids", ids},
      {"draft_vocab_size", config.vocab_size},
      {"target_hidden_size", Json()},
      {"sliding_window_non_causal", is_non_causal},
      {"sample_from_anchor", false},
      {"tie_word_embeddings", false},
      {"transformer_layer_config", layer_config_of(config)}};
}

void check_can_be_told(const DrafterConfig& config, DrafterReader reader) {
  const auto refuse = [&](const char* key, std::string expected, std::string got,
                          const char* hint) {
    throw ConfigError(
        {.what = key,
         .expected = std::move(expected),
         .got = std::move(got),
         .where = fmt::format("export --format {}", reader_name(reader)),
         .hint = hint});
  };
  if (config.num_target_layers == 0)
    refuse(
        "num_target_layers", "the number of layers of the drafter's target", "nothing about it",
        "--target.path=DIR");
  if (!is_causal_against_types(config)) return;
  const char* hint = "--format zlab or vllm, which read is_causal";
  const bool needs_layer_types =
      reader == DrafterReader::kSpecForge || reader == DrafterReader::kSglang;
  const bool has_full = std::find(config.is_sliding.begin(), config.is_sliding.end(), false) !=
                        config.is_sliding.end();
  if (needs_layer_types)
    refuse(
        "is_causal", "sliding layers causal in the block and full layers not",
        *config.is_causal ? "true" : "false", hint);
  if (reader == DrafterReader::kSpeculators && *config.is_causal && has_full)
    refuse("is_causal", "full layers that are not causal in the block", "true", hint);
}

}  // namespace

DrafterReader parse_drafter_reader(const std::string& name) {
  for (const auto& [known, reader] : kReaders)
    if (name == known) return reader;
  throw ConfigError(
      {.what = "--format",
       .expected = "zlab, specforge, sglang, vllm or speculators",
       .got = name.empty() ? "none" : "'" + name + "'",
       .where = "export",
       .hint = "--format zlab"});
}

std::string write_drafter_config(const DrafterConfig& config, const std::string& dtype) {
  return usual_config(config, dtype).dump(2) + "\n";
}

std::string
write_drafter_config(const DrafterConfig& config, DrafterReader reader, const Verifier& verifier) {
  check_can_be_told(config, reader);
  if (reader == DrafterReader::kSpeculators)
    return speculators_config(config, verifier).dump(2) + "\n";
  Json json = usual_config(config, "bfloat16");
  const bool is_served = reader == DrafterReader::kSglang || reader == DrafterReader::kVllm;
  if (is_served) json.erase("auto_map");
  if (reader == DrafterReader::kVllm && json.contains("is_causal"))
    json["dflash_config"]["causal"] = json.at("is_causal");
  return json.dump(2) + "\n";
}

std::string describe_reader_limits(const DrafterConfig& config, DrafterReader reader) {
  if (reader != DrafterReader::kSpeculators || !config.has_sliding_layers()) return "";
  const bool is_mixed = std::find(config.is_sliding.begin(), config.is_sliding.end(), false) !=
                        config.is_sliding.end();
  std::string text =
      "speculators does not move the window inside a block, so its hidden states differ from "
      "training in sliding layers";
  if (is_mixed && config.is_causal != false)
    text += "; vLLM makes all layers of such a folder causal: serve --format vllm with it instead";
  return text;
}

}  // namespace draftsmith::formats
