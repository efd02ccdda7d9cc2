// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/formats/drafter_layouts.h"

#include <fmt/format.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "draftsmith/base/error.h"

namespace draftsmith::formats {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void
refuse(const JsonObject& json, std::string key, std::string expected, std::string got) {
  throw DataError(
      {.what = std::move(key),
       .expected = std::move(expected),
       .got = std::move(got),
       .where = json.where(),
       .hint = "a plain DFlash drafter"});
}

/// Keys of other kinds of drafters, whose value must be absent, zero, false or one.
void refuse_other_kinds(const JsonObject& json) {
  constexpr std::array kZero = {
      "markov_rank",    "conv_kernel_size",        "selector_rank",
      "selector_top_k", "final_logit_softcapping", "pure_draft_prefix_len"};
  constexpr std::array kFalse = {
      "shift_label", "sample_from_anchor", "enable_confidence_head", "attention_sink_bias",
      "add_swa_attention_sink_bias"};
  constexpr std::array kOne = {
      "input_embedding_scale", "output_multiplier", "attention_value_scale"};
  for (const char* key : kZero) {
    if (json.number_or(key, 0) != 0) refuse(json, key, "none", json.value().at(key).dump());
  }
  for (const char* key : kFalse) {
    if (json.boolean_or(key, false)) refuse(json, key, "false", "true");
  }
  for (const char* key : kOne) {
    if (json.number_or(key, 1) != 1) refuse(json, key, "1", json.value().at(key).dump());
  }
  const std::string projector = json.text_or("projector_type", "");
  if (!projector.empty() && projector != "dflash")
    refuse(json, "projector_type", "none", "'" + projector + "'");
}

/// A drafter that proposes from a part of the vocabulary, or borrows another width.
void refuse_other_sizes(const JsonObject& json, const JsonObject& layers) {
  const auto check = [&](const char* key, const char* wanted) {
    if (!json.has(key)) return;
    const int64_t value = json.integer(key, 0, INT64_MAX);
    const int64_t own = layers.integer(wanted, 1, INT64_MAX);
    if (value != own)
      refuse(json, key, fmt::format("{}, the {}", own, wanted), fmt::format("{}", value));
  };
  check("draft_vocab_size", "vocab_size");
  check("target_hidden_size", "hidden_size");
}

Json from_speculators(const JsonObject& json) {
  if (json.text("speculators_model_type") != "dflash")
    refuse(json, "speculators_model_type", "dflash", json.text("speculators_model_type"));
  const JsonObject layers = json.object("transformer_layer_config");
  refuse_other_sizes(json, layers);
  std::vector<int64_t> ids = json.integers("aux_hidden_state_layer_ids");
  for (int64_t& id : ids) {
    if (id < 1) refuse(json, "aux_hidden_state_layer_ids", "ids of at least 1", fmt::format("{}", id));
    id -= 1;  // there an id names the layer whose input is captured
  }
  Json result = layers.value();
  result["block_size"] = json.integer("block_size", 2, 4096);
  result["dflash_config"] = {
      {"mask_token_id", json.integer("mask_token_id", 0, INT64_MAX)}, {"target_layer_ids", ids}};
  // Full layers are never causal there, so only `false` says something of all layers.
  if (json.boolean_or("sliding_window_non_causal", false)) result["is_causal"] = false;
  return result;
}

Json from_torchspec(const JsonObject& json) {
  Json result = json.value();
  result["model_type"] = "qwen3";
  const int64_t heads = json.integer("num_attention_heads", 1, 10000);
  if (!json.has("head_dim")) result["head_dim"] = json.integer("hidden_size", 1, INT64_MAX) / heads;
  const auto layers = static_cast<size_t>(json.integer("num_hidden_layers", 1, 10000));
  result["layer_types"] = std::vector<std::string>(layers, "full_attention");
  result["num_target_layers"] = json.integer("target_num_hidden_layers", 1, 10000);
  result["dflash_config"] = {
      {"mask_token_id", json.integer("mask_token_id", 0, INT64_MAX)},
      {"target_layer_ids", json.integers("target_layer_ids")}};
  return result;
}

Json from_flat(const JsonObject& json) {
  Json result = json.value();
  result["dflash_config"] = {
      {"mask_token_id", json.integer("mask_token_id", 0, INT64_MAX)},
      {"target_layer_ids", json.integers("target_layer_ids")}};
  return result;
}

Json with_usual_keys(const JsonObject& json) {
  if (json.has("speculators_model_type")) return from_speculators(json);
  if (!json.has("dflash_config")) {
    if (json.text_or("model_type", "") == "dflash") return from_torchspec(json);
    if (json.has("mask_token_id") && json.has("target_layer_ids")) return from_flat(json);
  }
  return json.value();
}

}  // namespace

JsonObject read_drafter_json(const fs::path& folder) {
  const auto json = JsonObject::from_file(folder / "config.json");
  if (json.has("architectures")) {
    for (const std::string& name : json.texts("architectures"))
      if (name.find("DFlashDraftModel") == name.npos && name != "DFlashSpeculator")
        refuse(json, "architectures", "DFlashDraftModel", "'" + name + "'");
  }
  refuse_other_kinds(json);
  if (json.has("dflash_config")) refuse_other_kinds(json.object("dflash_config"));
  if (fs::exists(folder / "mask_embedding.pt"))
    refuse(json, "mask_embedding.pt", "the target's own row for the mask token", "another one");
  JsonObject usual(with_usual_keys(json), json.where());
  refuse_other_sizes(usual, usual);
  return usual;
}

void use_own_tensor_names(SafetensorsReader& reader) {
  constexpr std::array<std::pair<const char*, const char*>, 3> kTorchSpec = {
      {{"context_proj.weight", "fc.weight"},
       {"context_norm.weight", "hidden_norm.weight"},
       {"final_norm.weight", "norm.weight"}}};
  for (const auto& [theirs, ours] : kTorchSpec)
    if (reader.has(theirs) && !reader.has(ours)) reader.rename(theirs, ours);
}

}  // namespace draftsmith::formats
