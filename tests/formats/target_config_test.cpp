// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "draftsmith/base/error.h"
#include "draftsmith/formats/hf_config.h"
#include "draftsmith/formats/stored_dtype.h"

#include "tests/base/expect_error.h"
#include "tests/formats/config_files.h"

namespace draftsmith::formats {
namespace {

using testing::config_of;
using testing::expect_error;
using testing::fixture;
using testing::read_target;
using testing::TempFolder;
using Ids = std::vector<int64_t>;

const char* const kLlama = "targets/llama-tiny";
const char* const kQwen = "targets/qwen3-tiny";

/// The llama fixture with these rope settings instead of its own.
Json with_rope(const Json& rope_parameters) {
  Json json = config_of(kLlama);
  json["rope_parameters"] = rope_parameters;
  return json;
}

/// The same in the spelling of transformers 4.
Json with_old_rope(const Json& theta, const Json& scaling) {
  Json json = config_of(kLlama);
  json.erase("rope_parameters");
  json["rope_theta"] = theta;
  json["rope_scaling"] = scaling;
  return json;
}

TEST(TargetConfig, ReadsTheLlamaFixture) {
  const auto config = read_target_config(fixture(kLlama));
  EXPECT_EQ(config.model_type, "llama");
  EXPECT_FALSE(config.has_qk_norm());
  EXPECT_EQ(config.vocab_size, 211);
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.intermediate_size, 96);
  EXPECT_EQ(config.num_layers, 4);
  EXPECT_EQ(config.num_heads, 4);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_TRUE(config.has_tied_head);
  EXPECT_FALSE(config.has_attention_bias);
  EXPECT_EQ(config.max_position_embeddings, 4096);
  EXPECT_EQ(config.eos_token_ids, Ids{2});
  EXPECT_EQ(config.rope.type, "llama3");
  EXPECT_EQ(config.rope.theta, 500000);
  EXPECT_EQ(config.rope.factor, 8);
  EXPECT_EQ(config.rope.low_freq_factor, 1);
  EXPECT_EQ(config.rope.high_freq_factor, 4);
  EXPECT_EQ(config.rope.original_max_position, 64);
}

TEST(TargetConfig, ReadsTheQwen3Fixture) {
  const auto config = read_target_config(fixture(kQwen));
  EXPECT_EQ(config.model_type, "qwen3");
  EXPECT_TRUE(config.has_qk_norm());
  EXPECT_FALSE(config.has_tied_head);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.rope.type, "default");
  EXPECT_EQ(config.rope.theta, 1000000);
}

TEST(TargetConfig, ReadsTheHybridFixtureFlatAndNested) {
  const Json flat = config_of("targets/qwen3_5-tiny");
  Json nested = {{"model_type", "qwen3_5"}, {"text_config", flat}, {"eos_token_id", {5, 6}}};
  nested["text_config"].erase("eos_token_id");
  for (const Json& json : {flat, nested}) {
    const auto config = read_target(json);
    EXPECT_TRUE(config.is_hybrid());
    EXPECT_TRUE(config.has_qk_norm());
    EXPECT_EQ(config.num_layers, 8);
    EXPECT_EQ(config.head_dim, 32);
    EXPECT_EQ(config.rotary_dim, 8);
    EXPECT_EQ(
        config.is_linear, (std::vector<bool>{true, true, true, false, true, true, true, false}));
    EXPECT_EQ(config.linear.num_key_heads, 2);
    EXPECT_EQ(config.linear.num_value_heads, 4);
    EXPECT_EQ(config.linear.key_head_dim, 16);
    EXPECT_EQ(config.linear.value_head_dim, 16);
    EXPECT_EQ(config.linear.conv_taps, 4);
    EXPECT_EQ(config.rope.theta, 10000);
  }
  EXPECT_EQ(read_target(nested).eos_token_ids, (Ids{5, 6}));
}

TEST(TargetConfig, RefusesHybridSettingsThatItDoesNotHave) {
  const Json good = config_of("targets/qwen3_5-tiny");
  const auto refuse = [&](const char* key, const Json& value) {
    Json json = good;
    json[key] = value;
    expect_error<DataError>([&] { read_target(json); }, {key});
  };
  refuse("attn_output_gate", false);
  refuse("linear_num_value_heads", 3);
  refuse("linear_conv_kernel_dim", 0);
  refuse("head_dim", nullptr);
  refuse("linear_key_head_dim", nullptr);
  Json json = good;
  json["layer_types"][1] = "sliding_attention";
  expect_error<DataError>([&] { read_target(json); }, {"layer_types", "sliding_attention"});
  json = good;
  json["layer_types"].erase(0);
  expect_error<DataError>([&] { read_target(json); }, {"layer_types", "8 entries"});
  json = good;
  json["rope_parameters"]["partial_rotary_factor"] = 1.5;
  expect_error<DataError>([&] { read_target(json); }, {"partial_rotary_factor"});
}

TEST(TargetConfig, DerivesHeadDimAndKeyHeadsThatAreNotStated) {
  Json json = config_of(kLlama);
  json.erase("head_dim");
  json.erase("num_key_value_heads");
  json["num_attention_heads"] = 8;
  EXPECT_EQ(read_target(json).head_dim, 8);
  EXPECT_EQ(read_target(json).num_kv_heads, 8);
}

TEST(TargetConfig, ReadsBiasFlags) {
  Json json = config_of(kLlama);
  json["attention_bias"] = true;
  json["mlp_bias"] = true;
  EXPECT_TRUE(read_target(json).has_attention_bias);
  EXPECT_TRUE(read_target(json).has_mlp_bias);
}

TEST(TargetConfig, NamesAModelTypeItDoesNotKnow) {
  for (const char* type : {"gpt2", "qwen3_moe", "Llama", ""}) {
    Json json = config_of(kLlama);
    json["model_type"] = type;
    expect_error<DataError>(
        [&] { read_target(json); }, {"model_type", "llama, qwen3, qwen3_5", type, "config.json"});
  }
}

TEST(TargetConfig, NamesARequiredKeyThatIsMissing) {
  for (const char* key :
       {"model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads"}) {
    Json json = config_of(kLlama);
    json.erase(key);
    expect_error<DataError>([&] { read_target(json); }, {key, "config.json"});
  }
}

TEST(TargetConfig, RefusesSizesThatCannotBe) {
  const std::vector<std::pair<const char*, Json>> changes = {
      {"vocab_size", 0},           {"hidden_size", -64},        {"num_hidden_layers", 1e9},
      {"num_attention_heads", 0},  {"num_key_value_heads", 3},  {"head_dim", 15},
      {"intermediate_size", "96"}, {"hidden_act", "gelu"},      {"rms_norm_eps", "small"},
      {"attention_bias", "no"},    {"tie_word_embeddings", 1},  {"eos_token_id", "</s>"},
      {"num_hidden_layers", 2.5},  {"num_attention_heads", -4}, {"head_dim", 0},
      {"hidden_size", 1 << 21},    {"vocab_size", 1LL << 31},   {"intermediate_size", 1 << 21},
      {"rms_norm_eps", -1e-6}};
  for (const auto& [key, value] : changes) {
    SCOPED_TRACE(value.dump());
    Json json = config_of(kLlama);
    json[key] = value;
    expect_error<DataError>([&] { read_target(json); }, {key, "config.json"});
  }
}

TEST(TargetConfig, RefusesAHeadDimThatItWouldDeriveAndNoModelHas) {
  Json json = config_of(kLlama);
  json.erase("head_dim");
  for (const int hidden_size : {2, 1 << 20}) {
    json["hidden_size"] = hidden_size;
    expect_error<DataError>([&] { read_target(json); }, {"head_dim"});
  }
}

TEST(TargetConfig, RefusesLayersWithASlidingWindow) {
  Json json = config_of(kQwen);
  json["layer_types"][2] = "sliding_attention";
  expect_error<DataError>([&] { read_target(json); }, {"layer_types", "sliding_attention"});
}

TEST(TargetRope, IsTheSameInBothSpellings) {
  const Json scaling = {
      {"factor", 8.0},
      {"low_freq_factor", 1.0},
      {"high_freq_factor", 4.0},
      {"original_max_position_embeddings", 64}};
  for (const char* key : {"rope_type", "type"}) {
    SCOPED_TRACE(key);
    Json old_scaling = scaling;
    old_scaling[key] = "llama3";
    const auto rope = read_target(with_old_rope(500000.0, old_scaling)).rope;
    EXPECT_EQ(rope.type, "llama3");
    EXPECT_EQ(rope.theta, 500000);
    EXPECT_EQ(rope.factor, 8);
    EXPECT_EQ(rope.low_freq_factor, 1);
    EXPECT_EQ(rope.high_freq_factor, 4);
    EXPECT_EQ(rope.original_max_position, 64);
  }
}

TEST(TargetRope, TakesNullScalingAsDefault) {
  const auto rope = read_target(with_old_rope(10000.0, nullptr)).rope;
  EXPECT_EQ(rope.type, "default");
  EXPECT_EQ(rope.theta, 10000);
}

TEST(TargetRope, PrefersRopeParametersOverTheOldKeys) {
  Json json = with_rope({{"rope_type", "default"}, {"rope_theta", 7000.0}});
  json["rope_theta"] = 5.0;
  json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(read_target(json).rope.theta, 7000);
  EXPECT_EQ(read_target(json).rope.type, "default");
}

TEST(TargetRope, ReadsLinearAndYarn) {
  const auto linear = read_target(with_old_rope(1e4, {{"type", "linear"}, {"factor", 2.0}})).rope;
  EXPECT_EQ(linear.type, "linear");
  EXPECT_EQ(linear.factor, 2);

  Json json = {
      {"rope_type", "yarn"},
      {"rope_theta", 1e6},
      {"factor", 4.0},
      {"original_max_position_embeddings", 32768}};
  const auto plain = read_target(with_rope(json)).rope;
  EXPECT_EQ(plain.type, "yarn");
  EXPECT_EQ(plain.original_max_position, 32768);
  EXPECT_EQ(plain.beta_fast, 32);
  EXPECT_EQ(plain.beta_slow, 1);
  EXPECT_FALSE(plain.attention_factor.has_value());

  json.update({{"beta_fast", 16.0}, {"beta_slow", 2.0}, {"attention_factor", 1.1}});
  const auto full = read_target(with_rope(json)).rope;
  EXPECT_EQ(full.beta_fast, 16);
  EXPECT_EQ(full.beta_slow, 2);
  EXPECT_EQ(full.attention_factor, 1.1);
}

TEST(TargetRope, NamesATypeItDoesNotKnowInEverySpelling) {
  const Json scaling = {{"factor", 2.0}, {"original_max_position_embeddings", 64}};
  for (const char* key : {"rope_type", "type"}) {
    Json changed = scaling;
    changed[key] = "longrope";
    const auto old_spelling = with_old_rope(1e4, changed);
    expect_error<DataError>([&] { read_target(old_spelling); }, {"rope type", "'longrope'"});
    changed["rope_theta"] = 1e4;
    expect_error<DataError>([&] { read_target(with_rope(changed)); }, {"rope type", "'longrope'"});
  }
}

TEST(TargetRope, NamesASettingThatATypeNeeds) {
  const Json llama = config_of(kLlama).at("rope_parameters");
  for (const char* key :
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    Json rope = llama;
    rope.erase(key);
    expect_error<DataError>([&] { read_target(with_rope(rope)); }, {key});
  }
  for (const char* key : {"factor", "original_max_position_embeddings"}) {
    Json rope = {
        {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
    rope.erase(key);
    expect_error<DataError>([&] { read_target(with_rope(rope)); }, {key});
  }
}

TEST(TargetRope, RefusesValuesThatWouldRotateWrongly) {
  const std::vector<std::pair<const char*, Json>> changes = {
      {"factor", 0.5},     {"factor", "8"},          {"high_freq_factor", 1.0},
      {"rope_theta", 1.0}, {"rope_theta", -10000.0}, {"partial_rotary_factor", 0.25}};
  for (const auto& [key, value] : changes) {
    Json rope = config_of(kLlama).at("rope_parameters");
    rope[key] = value;
    expect_error<DataError>([&] { read_target(with_rope(rope)); }, {key});
  }
  for (const auto& [key, value] : std::vector<std::pair<const char*, Json>>{
           {"truncate", false}, {"mscale", 1.0}, {"beta_fast", 0.5}, {"beta_fast", -32}}) {
    Json rope = {
        {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
    rope[key] = value;
    expect_error<DataError>([&] { read_target(with_rope(rope)); }, {key});
  }
}

// F03: transformers moves this key from the top level into rope_parameters, so it counts there.
TEST(TargetRope, RefusesAPartialRotaryFactorAtTheTopLevelToo) {
  Json json = config_of(kQwen);
  json["partial_rotary_factor"] = 0.25;
  expect_error<DataError>([&] { read_target(json); }, {"partial_rotary_factor"});
  json["partial_rotary_factor"] = 1.0;
  EXPECT_NO_THROW(read_target(json));
}

TEST(TargetRope, CountsANullTruncateOfYarnAsAbsent) {
  const Json rope = {
      {"rope_type", "yarn"},
      {"factor", 4.0},
      {"original_max_position_embeddings", 32768},
      {"truncate", nullptr}};
  EXPECT_EQ(read_target(with_rope(rope)).rope.type, "yarn");
}

TEST(StopTokens, ComeFromGenerationConfigFirst) {
  const TempFolder folder;
  folder.write("config.json", R"({"eos_token_id": 2})");
  EXPECT_EQ(read_stop_token_ids(folder.path()), Ids{2});
  folder.write("generation_config.json", R"({"eos_token_id": [5, 6]})");
  EXPECT_EQ(read_stop_token_ids(folder.path()), (Ids{5, 6}));
  folder.write("generation_config.json", R"({"eos_token_id": null})");
  EXPECT_EQ(read_stop_token_ids(folder.path()), Ids{2});
}

TEST(StopTokens, MayBeNone) {
  const TempFolder folder;
  folder.write("config.json", "{}");
  EXPECT_EQ(read_stop_token_ids(folder.path()), Ids{});
}

TEST(StoredDtype, IsReadWhereverAConfigSaysIt) {
  const auto read = [](const Json& json) {
    const TempFolder folder;
    folder.write("config.json", json.dump());
    return read_stored_dtype(folder.path());
  };
  EXPECT_EQ(read({{"dtype", "bfloat16"}}), "bfloat16");
  EXPECT_EQ(read({{"torch_dtype", "float16"}}), "float16");
  EXPECT_EQ(read({{"text_config", {{"dtype", "float32"}}}}), "float32");
  EXPECT_EQ(read({{"dtype", "bfloat16"}, {"quantization_config", Json::object()}}), "quantized");
  EXPECT_EQ(read(Json::object()), "");
}

}  // namespace
}  // namespace draftsmith::formats
