// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <set>

#include "draftsmith/base/error.h"
#include "draftsmith/formats/drafter_config_writing.h"

#include "tests/base/expect_error.h"
#include "tests/formats/config_files.h"

namespace draftsmith::formats {
namespace {

using testing::config_of;
using testing::expect_error;
using testing::read_drafter;

const Verifier kVerifier = {"some/target", {"Qwen3ForCausalLM"}};
const DrafterReader kAllReaders[] = {
    DrafterReader::kZlab, DrafterReader::kSpecForge, DrafterReader::kSglang, DrafterReader::kVllm,
    DrafterReader::kSpeculators};
const DrafterReader kFlatReaders[] = {
    DrafterReader::kZlab, DrafterReader::kSpecForge, DrafterReader::kSglang, DrafterReader::kVllm};

DrafterConfig drafter_with(std::vector<bool> is_sliding, std::optional<bool> is_causal = {}) {
  auto config = read_drafter(config_of("drafter/sliding"));
  config.num_layers = static_cast<int64_t>(is_sliding.size());
  config.is_sliding = std::move(is_sliding);
  config.sliding_window = config.has_sliding_layers() ? 6 : 0;
  config.is_causal = is_causal;
  return config;
}

Json written_for(DrafterReader reader, const DrafterConfig& config) {
  return parse_json(write_drafter_config(config, reader, kVerifier), "written");
}

/// What the layers do after a round trip through the file.
std::vector<bool> causal_layers(const DrafterConfig& config) {
  std::vector<bool> result;
  for (int64_t i = 0; i < config.num_layers; ++i)
    result.push_back(config.is_causal_block(i));
  return result;
}

TEST(DrafterReaders, AreKnownByName) {
  EXPECT_EQ(parse_drafter_reader("vllm"), DrafterReader::kVllm);
  expect_error<ConfigError>([] { parse_drafter_reader("gguf"); }, {"--format", "speculators"});
}

TEST(DrafterReaders, AllGetWhatOurOwnReaderUnderstands) {
  for (const DrafterReader reader : kAllReaders) {
    for (const auto& kinds : {std::vector<bool>{true, false}, {false, false}, {true, true}}) {
      const auto config = drafter_with(kinds);
      const auto again = read_drafter(written_for(reader, config));
      EXPECT_EQ(again.block_size, config.block_size);
      EXPECT_EQ(again.mask_token_id, config.mask_token_id);
      EXPECT_EQ(again.target_layer_ids, config.target_layer_ids);
      EXPECT_EQ(again.is_sliding, config.is_sliding);
      EXPECT_EQ(again.sliding_window, config.sliding_window);
      EXPECT_EQ(again.rope.theta, config.rope.theta);
      EXPECT_EQ(causal_layers(again), causal_layers(config));
    }
  }
}

TEST(DrafterReaders, StateTheDtypeAndNoTensorsOfTheTarget) {
  for (const DrafterReader reader : kAllReaders) {
    const Json json = written_for(reader, drafter_with({true, false}));
    EXPECT_EQ(json.at("dtype"), "bfloat16");
    EXPECT_EQ(json.at("tie_word_embeddings"), false);
  }
}

// F20: the default of every reader is what training does, so the key would only narrow who reads it.
TEST(DrafterReaders, GetNoIsCausalWhenLayersFollowTheirTypes) {
  for (const DrafterReader reader : kFlatReaders) {
    const Json json = written_for(reader, drafter_with({true, false}));
    EXPECT_FALSE(json.contains("is_causal"));
    EXPECT_FALSE(json.at("dflash_config").contains("causal"));
  }
}

TEST(DrafterReaders, GetIsCausalWhereTheyLook) {
  const auto config = drafter_with({true, false}, false);
  EXPECT_EQ(written_for(DrafterReader::kZlab, config).at("is_causal"), false);
  const Json vllm = written_for(DrafterReader::kVllm, config);
  EXPECT_EQ(vllm.at("is_causal"), false);
  EXPECT_EQ(vllm.at("dflash_config").at("causal"), false);
  EXPECT_EQ(written_for(DrafterReader::kSpeculators, config).at("sliding_window_non_causal"), true);
}

TEST(DrafterReaders, AreRefusedWhatTheyCannotBeTold) {
  for (const bool is_causal : {true, false}) {
    const auto config = drafter_with({true, false}, is_causal);
    for (const DrafterReader reader : {DrafterReader::kSpecForge, DrafterReader::kSglang})
      expect_error<ConfigError>([&] { written_for(reader, config); }, {"is_causal", "--format"});
  }
  expect_error<ConfigError>(
      [] {
        written_for(DrafterReader::kSpeculators, drafter_with({true, false}, true));
      },
      {"is_causal", "speculators"});
  // Said of all layers alike it is only what their types say.
  const auto plain = drafter_with({true, true}, true);
  for (const DrafterReader reader : {DrafterReader::kSpecForge, DrafterReader::kSglang}) {
    const Json json = written_for(reader, plain);
    EXPECT_FALSE(json.contains("is_causal"));
    EXPECT_EQ(causal_layers(read_drafter(json)), causal_layers(plain));
  }
}

TEST(DrafterReaders, NeedTheNumberOfTargetLayers) {
  auto config = drafter_with({false, false});
  config.num_target_layers = 0;
  for (const DrafterReader reader : kAllReaders)
    expect_error<ConfigError>(
        [&] { written_for(reader, config); }, {"num_target_layers", "--target.path"});
}

TEST(DrafterReaders, OnServersGetNoRemoteCode) {
  const auto config = drafter_with({true, false});
  EXPECT_TRUE(written_for(DrafterReader::kZlab, config).contains("auto_map"));
  EXPECT_TRUE(written_for(DrafterReader::kSpecForge, config).contains("auto_map"));
  EXPECT_FALSE(written_for(DrafterReader::kSglang, config).contains("auto_map"));
  EXPECT_FALSE(written_for(DrafterReader::kVllm, config).contains("auto_map"));
}

TEST(SpeculatorsConfig, CountsLayersFromTheirInputAndTokensWithoutTheAnchor) {
  const Json json = written_for(DrafterReader::kSpeculators, drafter_with({true, false}));
  EXPECT_EQ(json.at("aux_hidden_state_layer_ids"), Json({1, 3}));
  const Json& speculators = json.at("speculators_config");
  EXPECT_EQ(speculators.at("proposal_methods").at(0).at("speculative_tokens"), 3);
  EXPECT_EQ(speculators.at("verifier").at("name_or_path"), "some/target");
  EXPECT_EQ(speculators.at("verifier").at("architectures"), Json({"Qwen3ForCausalLM"}));
  EXPECT_EQ(json.at("sample_from_anchor"), false);
  EXPECT_EQ(json.at("draft_vocab_size"), 211);
}

// vLLM 0.33 reads `causal = not sliding_window_non_causal` and applies it to all layers.
TEST(SpeculatorsConfig, SaysNonCausalWhereNoLayerSlides) {
  const auto flag = [](const DrafterConfig& config) {
    return written_for(DrafterReader::kSpeculators, config).at("sliding_window_non_causal");
  };
  EXPECT_EQ(flag(drafter_with({false, false})), true);
  EXPECT_EQ(flag(drafter_with({true, true})), false);
  EXPECT_EQ(flag(drafter_with({true, false})), false);
  const auto limits = [](const DrafterConfig& config) {
    return describe_reader_limits(config, DrafterReader::kSpeculators);
  };
  EXPECT_TRUE(limits(drafter_with({false, false})).empty());
  EXPECT_EQ(limits(drafter_with({true, true})).find("vLLM"), std::string::npos);
  EXPECT_NE(limits(drafter_with({true, false})).find("vLLM"), std::string::npos);
}

/// Removes a key from wherever it stands; returns whether it stood anywhere.
bool erase_everywhere(Json& json, const std::string& key) {
  bool is_found = false;
  if (json.is_object()) {
    is_found = json.erase(key) > 0;
    for (auto& [name, value] : json.items())
      is_found = erase_everywhere(value, key) || is_found;
  }
  return is_found;
}

// F20: every key is either needed, and its absence refused by name, or says nothing that the
// drafter's states depend on.
TEST(DrafterReaders, GetOnlyKeysThatAreNeededOrHarmless) {
  const std::set<std::string> harmless = {
      "architectures",
      "auto_map",
      "dtype",
      "num_target_layers",
      "hidden_act",
      "max_window_layers",
      "use_sliding_window",
      "rope_scaling",
      "rope_type",
      "rope_parameters",
      "max_position_embeddings",
      "initializer_range",
      "attention_bias",
      "attention_dropout",
      "tie_word_embeddings",
      "use_cache",
      "bos_token_id",
      "eos_token_id",
      "pad_token_id"};
  const Json whole = written_for(DrafterReader::kZlab, drafter_with({true, false}));
  std::set<std::string> keys;
  for (const auto& [key, value] : whole.items())
    keys.insert(key);
  for (const char* group : {"dflash_config", "rope_parameters"})
    for (const auto& [key, value] : whole.at(group).items())
      keys.insert(key);
  for (const std::string& key : keys) {
    SCOPED_TRACE(key);
    Json json = whole;
    ASSERT_TRUE(erase_everywhere(json, key));
    if (harmless.count(key) != 0) {
      EXPECT_EQ(read_drafter(json).block_size, 4);
    } else {
      expect_error<DataError>([&] { read_drafter(json); }, {key, "config.json"});
    }
  }
}

}  // namespace
}  // namespace draftsmith::formats
