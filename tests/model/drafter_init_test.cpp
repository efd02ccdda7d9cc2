// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/model/drafter_init.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "draftsmith/base/error.h"
#include "draftsmith/data/draft_blocks.h"

#include "tests/model/tiny_checkpoint.h"
#include "tests/support/reference.h"
#include "tests/support/tiny_models.h"

namespace draftsmith::model {
namespace {

using testing::expect_error;
using testing::golden;
using testing::load_target;
using testing::tiny_drafter_settings;

std::map<std::string, torch::Tensor> by_name(const Drafter& drafter) {
  return {drafter.parameters().begin(), drafter.parameters().end()};
}

torch::Tensor sample() {
  return torch::tensor(testing::make_ids(40, 200, 7), torch::kLong).view({2, 20});
}

TEST(DrafterInit, DrawsRandomWeightsThatFollowFromTheSeed) {
  const auto target = load_target("targets/qwen3-tiny");
  const auto make = [&](uint64_t seed) {
    return by_name(make_drafter(tiny_drafter_settings(), {}, target, {}, seed));
  };
  const auto first = make(1);
  const auto again = make(1);
  const auto other = make(2);
  for (const auto& [name, tensor] : first) {
    EXPECT_TRUE(tensor.equal(again.at(name))) << name;
    if (name.find("norm") != std::string::npos) {
      EXPECT_TRUE(tensor.equal(torch::ones_like(tensor))) << name;
      continue;
    }
    EXPECT_FALSE(tensor.equal(other.at(name))) << name;
    // Standard deviation 0.02, from at least 2048 draws: its own error is below 2 % (1 sigma).
    EXPECT_NEAR(tensor.std().item<double>(), 0.02, 0.002) << name;
    EXPECT_NEAR(tensor.mean().item<double>(), 0, 0.002) << name;
  }
  EXPECT_FALSE(
      first.at("layers.0.mlp.up_proj.weight").equal(first.at("layers.1.mlp.up_proj.weight")));
}

TEST(DrafterInit, CopiesTheLastLayersOfAQwen3Target) {
  const auto target = load_target("targets/qwen3-tiny");
  const auto file = golden("targets/qwen3-tiny/model.safetensors");
  const auto drafter = make_drafter(tiny_drafter_settings("target"), {}, target, sample(), 1);
  int64_t copied = 0;
  for (const auto& [name, tensor] : by_name(drafter)) {
    if (name.rfind("layers.", 0) != 0) continue;
    const std::string source =
        std::string("model.layers.") + (name[7] == '0' ? "2" : "3") + name.substr(8);
    EXPECT_TRUE(tensor.equal(file.tensor(source))) << name;
    ++copied;
  }
  EXPECT_EQ(copied, 22);
  const auto tensors = by_name(drafter);
  EXPECT_TRUE(tensors.at("norm.weight").equal(file.tensor("model.norm.weight")));
  // fc hands the last captured layer on, and nothing of the first.
  const auto& fc = tensors.at("fc.weight");
  EXPECT_TRUE(fc.narrow(1, 0, 64).equal(torch::zeros({64, 64})));
  EXPECT_TRUE(fc.narrow(1, 64, 64).equal(torch::eye(64)));
}

TEST(DrafterInit, GivesALlamaTargetsLayersTheSizeOfItsQueriesAndKeys) {
  const auto target = load_target("targets/llama-tiny");
  const auto file = golden("targets/llama-tiny/model.safetensors");
  const auto tensors =
      by_name(make_drafter(tiny_drafter_settings("target"), {}, target, sample(), 1));
  for (const int64_t layer : {0, 1}) {
    const std::string own = "layers." + std::to_string(layer) + ".";
    const std::string source = "model.layers." + std::to_string(layer + 2) + ".";
    for (const char* name :
         {"self_attn.q_proj.weight", "mlp.down_proj.weight", "input_layernorm.weight"})
      EXPECT_TRUE(tensors.at(own + name).equal(file.tensor(source + name))) << own << name;
    // The queries and keys of the layer's real input, measured head by head.
    const auto input = target.forward(sample(), {layer + 1}).features;
    const auto& source_layer = target.layers()[static_cast<size_t>(layer + 2)];
    const auto scale = (input.square().mean(-1, true) + source_layer.eps).rsqrt();
    const auto normed = input * scale * source_layer.input_norm;
    for (const auto& [kind, projection] :
         {std::pair("q", &source_layer.q_proj), std::pair("k", &source_layer.k_proj)}) {
      const auto heads = (*projection)(normed).reshape({2, 20, -1, 16});
      const double size = heads.square().mean(-1).sqrt().mean().item<double>();
      const auto& norm = tensors.at(own + "self_attn." + kind + "_norm.weight");
      EXPECT_LE(testing::max_difference(norm, torch::full({16}, size)), 1e-4 * size) << own << kind;
      EXPECT_GT(std::abs(size - 1), 1e-2);  // the random initial value would show
    }
  }
}

TEST(DrafterInit, MakesUsableDraftersOfBothTargetsInBothDtypes) {
  for (const char* name : {"targets/qwen3-tiny", "targets/llama-tiny"}) {
    const auto target = load_target(name);
    for (const char* init : {"random", "target"}) {
      for (const char* dtype : {"float32", "bfloat16"}) {
        auto settings = tiny_drafter_settings(init);
        settings.dtype = dtype;
        const auto drafter = make_drafter(settings, {}, target, sample(), 1);
        EXPECT_EQ(drafter.dtype(), parse_dtype(dtype));
        auto cache = drafter.make_cache(1, 20);
        const auto features = target.forward(sample().narrow(0, 0, 1), {0, 2}).features;
        drafter.append_context(cache, features.to(drafter.dtype()));
        const auto block = torch::tensor({3, 205, 205, 205}, torch::kLong).view({1, 4});
        const auto states = drafter.draft(target.embed(block).to(drafter.dtype()), cache);
        EXPECT_TRUE(states.isfinite().all().item<bool>()) << name << init << dtype;
        EXPECT_EQ(states.sizes(), at::IntArrayRef({1, 4, 64}));
      }
    }
  }
}

TEST(DrafterInit, TakesItsSizesFromTheTargetUnlessTold) {
  const auto target = load_target("targets/qwen3-tiny");
  auto settings = tiny_drafter_settings();
  const auto plain = make_drafter_config(settings, target.config(), {});
  EXPECT_EQ(plain.num_heads, 4);
  EXPECT_EQ(plain.num_kv_heads, 2);
  EXPECT_EQ(plain.head_dim, 16);
  EXPECT_EQ(plain.intermediate_size, 96);
  EXPECT_EQ(plain.num_target_layers, 4);
  settings.num_attention_heads = 6;
  settings.num_key_value_heads = 3;
  settings.head_dim = 8;
  settings.intermediate_size = 40;
  settings.layer_types = {"sliding_attention", "full_attention"};
  settings.sliding_window = 5;
  settings.is_causal = false;
  const auto own = make_drafter_config(settings, target.config(), {});
  EXPECT_EQ(own.num_heads, 6);
  EXPECT_EQ(own.head_dim, 8);
  EXPECT_EQ(own.is_sliding, (std::vector<bool>{true, false}));
  EXPECT_EQ(own.sliding_window, 5);
  EXPECT_EQ(own.is_causal, std::optional<bool>(false));
  EXPECT_EQ(
      by_name(make_drafter(settings, {}, target, {}, 0))
          .at("layers.0.self_attn.q_proj.weight")
          .sizes(),
      at::IntArrayRef({48, 64}));
}

TEST(DrafterInit, RefusesSettingsThatDoNotFit) {
  const auto target = load_target("targets/qwen3-tiny");
  const auto expect_refused = [&](const std::string& part,
                                  const std::function<void(DrafterSettings&)>& change) {
    auto settings = tiny_drafter_settings();
    change(settings);
    expect_error<ConfigError>([&] { make_drafter(settings, {}, target, sample(), 0); }, {part});
  };
  expect_refused("target_layer_ids", [](auto& s) { s.target_layer_ids = {0, 3}; });
  expect_refused("target_layer_ids", [](auto& s) { s.target_layer_ids = {2, 0}; });
  expect_refused("target_layer_ids", [](auto& s) { s.target_layer_ids = {1, 1}; });
  expect_refused(
      "target_layer_ids", [](auto& s) { s.target_layer_ids.clear(); });  // formula: [1, 1]
  expect_refused("mask_token_id", [](auto& s) { s.mask_token_id = 211; });
  expect_refused("mask_token_id", [](auto& s) { s.mask_token_id = -1; });  // no tokenizer
  expect_refused("layer_types", [](auto& s) { s.layer_types = {"full_attention"}; });
  expect_refused("layer_types", [](auto& s) { s.layer_types = {"full_attention", "chunked"}; });
  expect_refused("num_key_value_heads", [](auto& s) { s.num_key_value_heads = 3; });
  expect_refused("head_dim", [](auto& s) { s.head_dim = 7; });
  expect_refused("head_dim", [](auto& s) {
    s.init = "target";
    s.head_dim = 8;
  });
  expect_refused("num_layers", [](auto& s) {
    s.init = "target";
    s.num_layers = 4;
  });
}

TEST(DrafterInit, LoadsAFolderThatFitsTheTarget) {
  const auto target = load_target("targets/qwen3-tiny");
  const auto drafter = make_drafter(
      tiny_drafter_settings(testing::fixture("drafter/full").string()), {}, target, {}, 0);
  EXPECT_TRUE(by_name(drafter)
                  .at("fc.weight")
                  .equal(golden("drafter/full/model.safetensors").tensor("fc.weight")));
}

TEST(DrafterInit, RefusesAFolderThatDoesNotFitTheTarget) {
  const auto target = load_target("targets/qwen3-tiny");
  const auto load = [&](const std::string& folder) {
    make_drafter(tiny_drafter_settings(folder), {}, target, {}, 0);
  };
  expect_error<DataError>(
      [&] { load(testing::fixture("decode/drafter").string()); }, {"vocab_size", "211", "23"});
  testing::TinyCheckpoint checkpoint("drafter/full");
  checkpoint.config["num_target_layers"] = 5;
  expect_error<DataError>([&] { load(checkpoint.write().string()); }, {"num_target_layers"});
  checkpoint.config.erase("num_target_layers");
  EXPECT_NO_THROW(load(checkpoint.write().string()));
  checkpoint.config["dflash_config"]["target_layer_ids"] = {0, 3};
  expect_error<DataError>([&] { load(checkpoint.write().string()); }, {"target_layer_ids"});
  expect_error<DataError>([&] { load("no/such/folder"); }, {"no/such/folder"});
}

}  // namespace
}  // namespace draftsmith::model
