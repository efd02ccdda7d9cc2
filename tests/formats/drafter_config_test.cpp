// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "draftsmith/base/error.h"
#include "draftsmith/formats/hf_config.h"

#include "tests/base/expect_error.h"
#include "tests/formats/config_files.h"

namespace draftsmith::formats {
namespace {

using testing::config_of;
using testing::expect_error;
using testing::fixture;
using testing::read_drafter;
using Ids = std::vector<int64_t>;

const char* const kFull = "drafter/full";
const char* const kSliding = "drafter/sliding";

TEST(DrafterConfig, ReadsTheFixtureWithFullLayers) {
  const auto config = read_drafter_config(fixture(kFull));
  EXPECT_EQ(config.model_type, "qwen3");
  EXPECT_EQ(config.block_size, 4);
  EXPECT_EQ(config.mask_token_id, 205);
  EXPECT_EQ(config.target_layer_ids, (Ids{0, 2}));
  EXPECT_EQ(config.num_target_layers, 4);
  EXPECT_EQ(config.num_layers, 2);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.rope.type, "default");
  EXPECT_EQ(config.rope.theta, 1000000);
  EXPECT_EQ(config.is_sliding, (std::vector<bool>{false, false}));
  EXPECT_FALSE(config.has_sliding_layers());
  EXPECT_FALSE(config.is_causal.has_value());
}

TEST(DrafterConfig, ReadsTheFixtureWithASlidingLayer) {
  const auto config = read_drafter_config(fixture(kSliding));
  EXPECT_EQ(config.is_sliding, (std::vector<bool>{true, false}));
  EXPECT_TRUE(config.has_sliding_layers());
  EXPECT_EQ(config.sliding_window, 6);
}

TEST(DrafterConfig, ReadsTheFixtureOfTheDecodingLoop) {
  const auto config = read_drafter_config(fixture("decode/drafter"));
  EXPECT_EQ(config.mask_token_id, 22);
  EXPECT_EQ(config.vocab_size, 23);
}

TEST(DrafterConfig, FindsTheBlockSizeInEitherPlaceAndTheInnerOneWins) {
  Json json = config_of(kFull);
  json.erase("block_size");
  json["dflash_config"]["block_size"] = 8;
  EXPECT_EQ(read_drafter(json).block_size, 8);
  json["block_size"] = 16;
  EXPECT_EQ(read_drafter(json).block_size, 8);
  json["dflash_config"].erase("block_size");
  EXPECT_EQ(read_drafter(json).block_size, 16);
}

TEST(DrafterConfig, FindsTheNumberOfTargetLayersInEitherPlaceOrNone) {
  Json json = config_of(kFull);
  json.erase("num_target_layers");
  EXPECT_EQ(read_drafter(json).num_target_layers, 0);
  json["dflash_config"]["num_target_layers"] = 6;
  EXPECT_EQ(read_drafter(json).num_target_layers, 6);
}

TEST(DrafterConfig, FindsThetaInEitherSpelling) {
  Json json = config_of(kFull);
  json.erase("rope_parameters");
  json["rope_theta"] = 5000;
  json["rope_scaling"] = nullptr;
  EXPECT_EQ(read_drafter(json).rope.theta, 5000);
}

// F20: a key that a reader guesses makes acceptance collapse without any error.
TEST(DrafterConfig, IsRefusedWithoutAnyKeyThatWouldHaveToBeGuessed) {
  for (const char* key :
       {"block_size", "layer_types", "sliding_window", "head_dim", "rms_norm_eps", "dflash_config",
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "model_type"}) {
    SCOPED_TRACE(key);
    Json json = config_of(kSliding);
    ASSERT_EQ(json.erase(key), 1U);
    expect_error<DataError>([&] { read_drafter(json); }, {key, "config.json"});
    json[key] = nullptr;
    expect_error<DataError>([&] { read_drafter(json); }, {key, "config.json"});
  }
  for (const char* key : {"mask_token_id", "target_layer_ids"}) {
    SCOPED_TRACE(key);
    Json json = config_of(kSliding);
    ASSERT_EQ(json["dflash_config"].erase(key), 1U);
    expect_error<DataError>([&] { read_drafter(json); }, {key, "config.json"});
  }
  Json json = config_of(kSliding);
  ASSERT_EQ(json["rope_parameters"].erase("rope_theta"), 1U);
  expect_error<DataError>([&] { read_drafter(json); }, {"rope_theta", "config.json"});
  json.erase("rope_parameters");
  expect_error<DataError>([&] { read_drafter(json); }, {"rope_theta", "config.json"});
}

// F03: a partial rotation that a hybrid target's config left behind.
TEST(DrafterConfig, RefusesAPartialRotaryFactorInEitherPlace) {
  Json outer = config_of(kFull);
  outer["partial_rotary_factor"] = 0.25;
  expect_error<DataError>([&] { read_drafter(outer); }, {"partial_rotary_factor"});
  Json inner = config_of(kFull);
  inner["rope_parameters"]["partial_rotary_factor"] = 0.25;
  expect_error<DataError>([&] { read_drafter(inner); }, {"partial_rotary_factor"});
}

TEST(DrafterConfig, NeedsNoWindowWithoutSlidingLayers) {
  Json json = config_of(kFull);
  json.erase("sliding_window");
  EXPECT_FALSE(read_drafter(json).has_sliding_layers());
}

TEST(DrafterConfig, RefusesValuesThatCannotBe) {
  const std::vector<std::pair<const char*, Json>> changes = {
      {"block_size", 1},
      {"block_size", "4"},
      {"model_type", "llama"},
      {"num_target_layers", 3},  // layer 2 would be its last
      {"layer_types", {"full_attention"}},
      {"layer_types", {"full_attention", "chunked_attention"}},
      {"sliding_window", 0},
      {"is_causal", "yes"},
      {"head_dim", 15}};
  for (const auto& [key, value] : changes) {
    SCOPED_TRACE(std::string(key) + " " + value.dump());
    Json json = config_of(kSliding);
    json[key] = value;
    const std::string_view name =
        std::string_view(key) == "num_target_layers" ? "target_layer_ids" : key;
    expect_error<DataError>([&] { read_drafter(json); }, {name, "config.json"});
  }
}

TEST(DrafterConfig, RefusesAMaskTokenOutsideTheVocabulary) {
  for (const Json& id : {Json(211), Json(-1), Json(1.5)}) {
    Json json = config_of(kFull);
    json["dflash_config"]["mask_token_id"] = id;
    expect_error<DataError>([&] { read_drafter(json); }, {"mask_token_id", id.dump()});
  }
}

// F04: ids count decoder layers from 0; the last layer and the embedding cannot be captured.
TEST(DrafterConfig, RefusesLayerIdsThatNoTargetServes) {
  for (const Ids& ids : {Ids{}, Ids{2, 0}, Ids{1, 1}, Ids{-1, 2}, Ids{0, 3}, Ids{0, 4}}) {
    Json json = config_of(kFull);
    json["dflash_config"]["target_layer_ids"] = ids;
    SCOPED_TRACE(json["dflash_config"].dump());
    expect_error<DataError>([&] { read_drafter(json); }, {"target_layer_ids", "config.json"});
  }
}

TEST(DrafterConfig, RefusesLayerIdsBeyondAnyTargetWhereNoneIsNamed) {
  Json json = config_of(kFull);
  json.erase("num_target_layers");
  json["dflash_config"].erase("num_target_layers");
  json["dflash_config"]["target_layer_ids"] = Ids{0, INT64_MAX};
  expect_error<DataError>([&] { read_drafter(json); }, {"target_layer_ids", "config.json"});
}

TEST(CausalBlocks, FollowTheLayerTypeUnlessTheFileSaysOtherwise) {
  Json json = config_of(kSliding);
  EXPECT_TRUE(read_drafter(json).is_causal_block(0));
  EXPECT_FALSE(read_drafter(json).is_causal_block(1));
  json["is_causal"] = false;
  EXPECT_FALSE(read_drafter(json).is_causal_block(0));
  EXPECT_FALSE(read_drafter(json).is_causal_block(1));
  json["is_causal"] = true;
  EXPECT_TRUE(read_drafter(json).is_causal_block(0));
  EXPECT_TRUE(read_drafter(json).is_causal_block(1));
}

}  // namespace
}  // namespace draftsmith::formats
