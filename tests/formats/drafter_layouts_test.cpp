// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/formats/drafter_layouts.h"

#include <gtest/gtest.h>

#include "draftsmith/base/error.h"
#include "draftsmith/formats/hf_config.h"

#include "tests/base/expect_error.h"
#include "tests/formats/config_files.h"
#include "tests/formats/published_layouts.h"

namespace draftsmith::formats {
namespace {

using testing::as_speculators;
using testing::as_torchspec;
using testing::config_of;
using testing::expect_error;
using testing::read_drafter;
using Ids = std::vector<int64_t>;

const char* const kFull = "drafter/full";
const char* const kSliding = "drafter/sliding";

void expect_same_choices(const DrafterConfig& left, const DrafterConfig& right) {
  EXPECT_EQ(left.block_size, right.block_size);
  EXPECT_EQ(left.mask_token_id, right.mask_token_id);
  EXPECT_EQ(left.target_layer_ids, right.target_layer_ids);
  EXPECT_EQ(left.is_sliding, right.is_sliding);
  EXPECT_EQ(left.sliding_window, right.sliding_window);
  EXPECT_EQ(left.is_causal, right.is_causal);
  EXPECT_EQ(left.head_dim, right.head_dim);
  EXPECT_EQ(left.num_layers, right.num_layers);
  EXPECT_EQ(left.rope.theta, right.rope.theta);
}

TEST(DrafterLayout, OfSpeculatorsGivesTheSameConfig) {
  for (const char* fixture : {kFull, kSliding}) {
    const Json json = config_of(fixture);
    expect_same_choices(read_drafter(as_speculators(json)), read_drafter(json));
  }
}

TEST(DrafterLayout, OfSpeculatorsCountsLayersFromTheirInput) {
  EXPECT_EQ(as_speculators(config_of(kFull)).at("aux_hidden_state_layer_ids"), Json({1, 3}));
  EXPECT_EQ(read_drafter(as_speculators(config_of(kFull))).target_layer_ids, (Ids{0, 2}));
  Json json = as_speculators(config_of(kFull));
  json["aux_hidden_state_layer_ids"] = {0, 3};  // the embedding's output
  expect_error<DataError>([&] { read_drafter(json); }, {"aux_hidden_state_layer_ids", "got 0"});
}

TEST(DrafterLayout, OfSpeculatorsFreesSlidingLayersOnly) {
  Json json = as_speculators(config_of(kSliding));
  json["sliding_window_non_causal"] = true;
  EXPECT_FALSE(read_drafter(json).is_causal_block(0));
  EXPECT_FALSE(read_drafter(json).is_causal_block(1));
  json["sliding_window_non_causal"] = false;
  EXPECT_TRUE(read_drafter(json).is_causal_block(0));
  EXPECT_FALSE(read_drafter(json).is_causal_block(1));
}

TEST(DrafterLayout, OfSpeculatorsIsRefusedWithoutAnyKeyThatWouldHaveToBeGuessed) {
  const Json whole = as_speculators(config_of(kSliding));
  for (const char* key :
       {"block_size", "mask_token_id", "aux_hidden_state_layer_ids", "transformer_layer_config"}) {
    Json json = whole;
    ASSERT_EQ(json.erase(key), 1U);
    expect_error<DataError>([&] { read_drafter(json); }, {key, "config.json"});
  }
  for (const char* key : {"layer_types", "sliding_window", "head_dim", "rms_norm_eps"}) {
    Json json = whole;
    ASSERT_EQ(json.at("transformer_layer_config").erase(key), 1U);
    expect_error<DataError>([&] { read_drafter(json); }, {key, "config.json"});
  }
}

TEST(DrafterLayout, OfTorchSpecGivesTheSameConfig) {
  const Json json = config_of(kFull);
  const auto config = read_drafter(as_torchspec(json));
  expect_same_choices(config, read_drafter(json));
  EXPECT_EQ(config.num_target_layers, 4);  // and not the number of captured layers
}

TEST(DrafterLayout, OfTorchSpecIsRefusedWithoutAnyKeyThatWouldHaveToBeGuessed) {
  const Json whole = as_torchspec(config_of(kFull));
  for (const char* key :
       {"block_size", "mask_token_id", "target_layer_ids", "target_num_hidden_layers", "rope_theta",
        "rms_norm_eps"}) {
    Json json = whole;
    ASSERT_EQ(json.erase(key), 1U);
    expect_error<DataError>([&] { read_drafter(json); }, {key, "config.json"});
  }
}

TEST(DrafterLayout, FindsMaskAndLayersAtTheTopLevelToo) {
  Json json = config_of(kFull);
  json["mask_token_id"] = 205;
  json["target_layer_ids"] = {0, 2};
  json.erase("dflash_config");
  EXPECT_EQ(read_drafter(json).target_layer_ids, (Ids{0, 2}));
  EXPECT_EQ(read_drafter(json).mask_token_id, 205);
}

TEST(DrafterLayout, OfNemoNamesItsClassAndMayBeCausal) {
  Json json = config_of(kFull);
  json["architectures"] = {"Qwen3DFlashDraftModel"};
  EXPECT_FALSE(read_drafter(json).is_causal_block(1));
  json["causal"] = true;  // JetSpec
  EXPECT_TRUE(read_drafter(json).is_causal_block(1));
}

// As vLLM resolves them.
TEST(DrafterLayout, PrefersIsCausalToTheInnerKey) {
  Json json = config_of(kSliding);
  json["dflash_config"]["causal"] = false;
  EXPECT_FALSE(read_drafter(json).is_causal_block(0));
  json["is_causal"] = true;
  EXPECT_TRUE(read_drafter(json).is_causal_block(0));
}

TEST(DrafterLayout, RefusesDraftersOfAnotherKind) {
  const std::vector<std::pair<const char*, Json>> changes = {
      {"architectures", {"DFlash2DraftModel"}},
      {"architectures", {"Qwen3DSparkModel"}},
      {"markov_rank", 16},
      {"conv_kernel_size", 4},
      {"shift_label", true},
      {"sample_from_anchor", true},
      {"output_multiplier", 0.5},
      {"draft_vocab_size", 100},
      {"target_hidden_size", 128}};
  for (const auto& [key, value] : changes) {
    SCOPED_TRACE(std::string(key) + " " + value.dump());
    Json json = config_of(kFull);
    json[key] = value;
    expect_error<DataError>([&] { read_drafter(json); }, {key, "config.json"});
  }
  Json json = config_of(kFull);
  json["dflash_config"]["projector_type"] = "domino";
  expect_error<DataError>([&] { read_drafter(json); }, {"projector_type", "domino"});
  Json reduced = as_speculators(config_of(kFull));
  reduced["draft_vocab_size"] = 100;
  expect_error<DataError>([&] { read_drafter(reduced); }, {"draft_vocab_size", "211", "100"});
}

TEST(DrafterLayout, RefusesAMaskEmbeddingOfItsOwn) {
  const testing::TempFolder folder;
  folder.write("config.json", config_of(kFull).dump());
  folder.write("mask_embedding.pt", "");
  expect_error<DataError>(
      [&] { read_drafter_config(folder.path()); }, {"mask_embedding.pt", "mask token"});
}

TEST(TensorNames, OfTorchSpecBecomeOurs) {
  const testing::TempFolder folder;
  const auto one = torch::ones({1});
  write_safetensors(
      folder / "model.safetensors", {{"context_proj.weight", one},
                                     {"context_norm.weight", 2 * one},
                                     {"final_norm.weight", 3 * one},
                                     {"layers.0.mlp.up_proj.weight", 4 * one}});
  auto reader = SafetensorsReader::open_folder(folder.path());
  use_own_tensor_names(reader);
  EXPECT_EQ(reader.tensor("fc.weight").item<double>(), 1);
  EXPECT_EQ(reader.tensor("hidden_norm.weight").item<double>(), 2);
  EXPECT_EQ(reader.tensor("norm.weight").item<double>(), 3);
  EXPECT_EQ(reader.tensor("layers.0.mlp.up_proj.weight").item<double>(), 4);
  EXPECT_FALSE(reader.has("context_proj.weight"));
}

}  // namespace
}  // namespace draftsmith::formats
