// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/formats/drafter_config_writing.h"

#include <gtest/gtest.h>

#include "draftsmith/base/error.h"

#include "tests/base/expect_error.h"
#include "tests/formats/config_files.h"

namespace draftsmith::formats {
namespace {

using testing::expect_error;
using testing::read_drafter;

/// The drafter of Qwen3.6-27B as SpecForge configures it, which z-lab's published one matches.
/// Special token ids, which no drafter uses, are left out.
const char* const kPublished = R"({
  "architectures": ["DFlashDraftModel"], "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
  "model_type": "qwen3", "dtype": "bfloat16", "block_size": 16, "num_target_layers": 64,
  "dflash_config": {"mask_token_id": 248070, "target_layer_ids": [1, 16, 31, 46, 61]},
  "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 5,
  "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
  "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention",
                  "sliding_attention", "full_attention"],
  "sliding_window": 2048, "use_sliding_window": true, "max_window_layers": 5,
  "rope_theta": 10000000, "rope_scaling": null, "max_position_embeddings": 262144,
  "rms_norm_eps": 1e-06, "initializer_range": 0.02, "attention_bias": false,
  "attention_dropout": 0.0, "vocab_size": 248320, "tie_word_embeddings": false,
  "use_cache": true})";

DrafterConfig published() { return read_drafter(parse_json(kPublished, "published")); }

Json written(const DrafterConfig& config, const std::string& dtype = "bfloat16") {
  return parse_json(write_drafter_config(config, dtype), "written");
}

void expect_same_rope(const RopeSettings& left, const RopeSettings& right) {
  EXPECT_EQ(left.type, right.type);
  EXPECT_EQ(left.theta, right.theta);
  EXPECT_EQ(left.factor, right.factor);
  EXPECT_EQ(left.low_freq_factor, right.low_freq_factor);
  EXPECT_EQ(left.high_freq_factor, right.high_freq_factor);
  EXPECT_EQ(left.original_max_position, right.original_max_position);
  EXPECT_EQ(left.beta_fast, right.beta_fast);
  EXPECT_EQ(left.beta_slow, right.beta_slow);
  EXPECT_EQ(left.attention_factor, right.attention_factor);
}

void expect_same(const DrafterConfig& left, const DrafterConfig& right) {
  EXPECT_EQ(left.model_type, right.model_type);
  EXPECT_EQ(left.vocab_size, right.vocab_size);
  EXPECT_EQ(left.hidden_size, right.hidden_size);
  EXPECT_EQ(left.intermediate_size, right.intermediate_size);
  EXPECT_EQ(left.num_layers, right.num_layers);
  EXPECT_EQ(left.num_heads, right.num_heads);
  EXPECT_EQ(left.num_kv_heads, right.num_kv_heads);
  EXPECT_EQ(left.head_dim, right.head_dim);
  EXPECT_EQ(left.rms_norm_eps, right.rms_norm_eps);
  EXPECT_EQ(left.has_attention_bias, right.has_attention_bias);
  EXPECT_EQ(left.max_position_embeddings, right.max_position_embeddings);
  EXPECT_EQ(left.block_size, right.block_size);
  EXPECT_EQ(left.mask_token_id, right.mask_token_id);
  EXPECT_EQ(left.target_layer_ids, right.target_layer_ids);
  EXPECT_EQ(left.num_target_layers, right.num_target_layers);
  EXPECT_EQ(left.is_sliding, right.is_sliding);
  EXPECT_EQ(left.sliding_window, right.sliding_window);
  EXPECT_EQ(left.is_causal, right.is_causal);
  EXPECT_EQ(left.initializer_range, right.initializer_range);
  expect_same_rope(left.rope, right.rope);
}

TEST(WrittenDrafterConfig, EqualsAPublishedOneKeyByKey) {
  const Json wanted = parse_json(kPublished, "published");
  const Json json = written(published());
  for (const auto& [key, value] : wanted.items()) {
    SCOPED_TRACE(key);
    ASSERT_TRUE(json.contains(key));
    if (key == "dflash_config") continue;
    EXPECT_EQ(json.at(key), value);
  }
  for (const auto& [key, value] : wanted.at("dflash_config").items())
    EXPECT_EQ(json.at("dflash_config").at(key), value);
}

TEST(WrittenDrafterConfig, StatesBlockSizeAndRopeInBothPlaces) {
  const Json json = written(published());
  EXPECT_EQ(json.at("block_size"), 16);
  EXPECT_EQ(json.at("dflash_config").at("block_size"), 16);
  EXPECT_EQ(json.at("rope_theta"), 10000000);
  EXPECT_EQ(json.at("rope_parameters").at("rope_theta"), 10000000);
  EXPECT_EQ(json.at("rope_parameters").at("rope_type"), "default");
}

// F03: nothing of a hybrid target's geometry may slip in.
TEST(WrittenDrafterConfig, HasNoKeyThatChangesTheRotatedWidth) {
  const std::string text = write_drafter_config(published(), "bfloat16");
  for (const char* key : {"partial_rotary_factor", "mrope", "linear_", "mtp"})
    EXPECT_EQ(text.find(key), std::string::npos) << key;
}

TEST(WrittenDrafterConfig, StatesTheDtypeOfTheWeights) {
  EXPECT_EQ(written(published(), "float32").at("dtype"), "float32");
}

TEST(WrittenDrafterConfig, ReadsBackAsItWasForEveryKindOfLayer) {
  for (const std::vector<bool>& kinds :
       {std::vector<bool>{true, true, true, true, false}, std::vector<bool>(5, false),
        std::vector<bool>(5, true)}) {
    DrafterConfig config = published();
    config.is_sliding = kinds;
    config.sliding_window = config.has_sliding_layers() ? 64 : 0;
    expect_same(read_drafter(written(config)), config);
  }
}

TEST(WrittenDrafterConfig, TurnsTheWindowOffWithoutSlidingLayers) {
  DrafterConfig config = published();
  config.is_sliding.assign(5, false);
  const Json json = written(config);
  EXPECT_TRUE(json.at("sliding_window").is_null());
  EXPECT_EQ(json.at("use_sliding_window"), false);
}

TEST(WrittenDrafterConfig, ReadsBackAsItWasForEveryStateOfIsCausal) {
  for (const std::optional<bool> is_causal : {std::optional<bool>(), {true}, {false}}) {
    DrafterConfig config = published();
    config.is_causal = is_causal;
    const Json json = written(config);
    EXPECT_EQ(json.contains("is_causal"), is_causal.has_value());
    expect_same(read_drafter(json), config);
  }
}

TEST(WrittenDrafterConfig, ReadsBackAsItWasForEveryRopeType) {
  RopeSettings linear;
  linear.type = "linear";
  linear.factor = 2;
  RopeSettings llama3;
  llama3.type = "llama3";
  llama3.factor = 8;
  llama3.low_freq_factor = 1.5;
  llama3.high_freq_factor = 4.5;
  llama3.original_max_position = 8192;
  RopeSettings yarn;
  yarn.type = "yarn";
  yarn.factor = 4;
  yarn.original_max_position = 32768;
  yarn.beta_fast = 16;
  yarn.beta_slow = 2;
  RopeSettings scaled_yarn = yarn;
  scaled_yarn.attention_factor = 1.1;
  for (RopeSettings rope : {RopeSettings{}, linear, llama3, yarn, scaled_yarn}) {
    SCOPED_TRACE(rope.type);
    rope.theta = 123456.5;
    DrafterConfig config = published();
    config.rope = rope;
    Json json = written(config);
    expect_same(read_drafter(json), config);
    // A reader of transformers 4 knows only the other place.
    json.erase("rope_parameters");
    expect_same(read_drafter(json), config);
  }
}

TEST(WrittenDrafterConfig, ReadsBackOtherValuesThanTheDefaults) {
  DrafterConfig config = published();
  config.has_attention_bias = true;
  config.rms_norm_eps = 1.0 / 3;
  config.initializer_range = 0.01;
  config.num_target_layers = 0;
  const Json json = written(config);
  EXPECT_FALSE(json.contains("num_target_layers"));
  expect_same(read_drafter(json), config);
}

// F20 on our own files, where block size and theta stand in two places.
TEST(WrittenDrafterConfig, IsRefusedWithoutAnyKeyThatWouldHaveToBeGuessed) {
  const Json whole = written(published());
  for (const char* key : {"layer_types", "sliding_window", "head_dim", "rms_norm_eps"}) {
    Json json = whole;
    ASSERT_EQ(json.erase(key), 1U);
    expect_error<DataError>([&] { read_drafter(json); }, {key, "config.json"});
  }
  for (const char* key : {"mask_token_id", "target_layer_ids", "block_size"}) {
    Json json = whole;
    ASSERT_EQ(json.at("dflash_config").erase(key), 1U);
    json.erase(key);
    expect_error<DataError>([&] { read_drafter(json); }, {key, "config.json"});
  }
  Json json = whole;
  ASSERT_EQ(json.at("rope_parameters").erase("rope_theta"), 1U);
  EXPECT_EQ(read_drafter(json).rope.theta, 10000000);
  ASSERT_EQ(json.erase("rope_theta"), 1U);
  expect_error<DataError>([&] { read_drafter(json); }, {"rope_theta", "config.json"});
}

}  // namespace
}  // namespace draftsmith::formats
