// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/model/weights.h"

#include <gtest/gtest.h>

#include "draftsmith/base/error.h"

#include "tests/model/tiny_checkpoint.h"
#include "tests/support/reference.h"
#include "tests/support/tiny_models.h"

namespace draftsmith::model {
namespace {

using testing::expect_error;
using testing::max_difference;
using testing::TinyCheckpoint;

/// Logits of ten fixed tokens, and what they must be if `head` is the lm_head.
void expect_head(const Target& target, const torch::Tensor& head) {
  const auto ids = torch::tensor(testing::make_ids(10, 211, 5), torch::kLong).unsqueeze(0);
  const auto last = target.forward(ids, {}).last;
  EXPECT_LE(max_difference(target.logits(last), torch::matmul(last, head.t())), 1e-5);
}

/// F19: one tied checkpoint with the five ways to save its head.
struct TiedHead : ::testing::Test {
  TinyCheckpoint checkpoint{"targets/llama-tiny"};
  torch::Tensor embedding = checkpoint.tensors.at("model.embed_tokens.weight");
  torch::Tensor other_head = testing::random_normal({211, 64}, 1).to(torch::kFloat);
};

TEST_F(TiedHead, IsTheEmbeddingWithoutAnLmHead) {
  EXPECT_EQ(checkpoint.tensors.count("lm_head.weight"), 0U);
  expect_head(checkpoint.load(), embedding);
}

TEST_F(TiedHead, IsTheEmbeddingWithAWarningIfTheFileHasAnotherHead) {
  checkpoint.tensors["lm_head.weight"] = other_head;
  ::testing::internal::CaptureStderr();
  const auto target = checkpoint.load();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("warning"), std::string::npos) << log;
  EXPECT_NE(log.find("lm_head.weight differs"), std::string::npos) << log;
  expect_head(target, embedding);
}

TEST_F(TiedHead, NeedsNoWarningIfTheFilesHeadIsTheEmbedding) {
  checkpoint.tensors["lm_head.weight"] = embedding.clone();
  ::testing::internal::CaptureStderr();
  checkpoint.load();
  EXPECT_EQ(::testing::internal::GetCapturedStderr().find("warning"), std::string::npos);
}

TEST_F(TiedHead, IsTheFilesHeadIfItIsNotTied) {
  checkpoint.config["tie_word_embeddings"] = false;
  checkpoint.tensors["lm_head.weight"] = other_head;
  expect_head(checkpoint.load(), other_head);
}

TEST_F(TiedHead, IsAnErrorIfItIsNeitherTiedNorThere) {
  checkpoint.config["tie_word_embeddings"] = false;
  expect_error<DataError>([&] { checkpoint.load(); }, {"lm_head.weight"});
}

TEST(Weights, NamesAMissingTensor) {
  for (const char* name :
       {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight",
        "model.layers.2.self_attn.k_norm.weight", "model.layers.3.mlp.down_proj.weight"}) {
    TinyCheckpoint checkpoint("targets/qwen3-tiny");
    ASSERT_EQ(checkpoint.tensors.erase(name), 1U) << name;
    expect_error<DataError>([&] { checkpoint.load(); }, {name});
  }
}

TEST(Weights, NamesATensorOfAnotherShape) {
  TinyCheckpoint checkpoint("targets/qwen3-tiny");
  auto& tensor = checkpoint.tensors.at("model.layers.1.self_attn.q_proj.weight");
  tensor = tensor.narrow(0, 0, 32).contiguous();
  expect_error<DataError>(
      [&] { checkpoint.load(); },
      {"model.layers.1.self_attn.q_proj.weight", "[64, 64]", "[32, 64]"});
}

TEST(Weights, NamesATensorOfIntegers) {
  TinyCheckpoint checkpoint("targets/qwen3-tiny");
  auto& tensor = checkpoint.tensors.at("model.layers.0.input_layernorm.weight");
  tensor = tensor.to(torch::kInt);
  expect_error<DataError>(
      [&] { checkpoint.load(); }, {"model.layers.0.input_layernorm.weight", "Int"});
}

TEST(Weights, ListsUnusedTensorsOnce) {
  TinyCheckpoint checkpoint("targets/qwen3-tiny");
  checkpoint.tensors["visual.patch_embed.weight"] = torch::zeros({2});
  ::testing::internal::CaptureStderr();
  checkpoint.load();
  const std::string log = ::testing::internal::GetCapturedStderr();
  const size_t first = log.find("visual.patch_embed.weight");
  EXPECT_NE(first, std::string::npos);
  EXPECT_EQ(log.find("visual.patch_embed.weight", first + 1), std::string::npos);
}

TEST(Weights, ConvertTheFilesDtypeToTheOneAskedFor) {
  TinyCheckpoint checkpoint("targets/qwen3-tiny");
  for (auto& [name, tensor] : checkpoint.tensors)
    tensor = tensor.to(torch::kBFloat16);
  const auto target = checkpoint.load("float32");
  EXPECT_EQ(target.dtype(), torch::kFloat);
  EXPECT_TRUE(target.lm_head().equal(checkpoint.tensors.at("lm_head.weight").to(torch::kFloat)));
}

TEST(Weights, IncludeTheBiasesThatTheConfigAsksFor) {
  formats::TargetConfig config;
  config.model_type = "llama";
  config.vocab_size = 8;
  config.hidden_size = 4;
  config.intermediate_size = 6;
  config.num_layers = 1;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 4;
  config.is_linear = {false};
  const auto list = [&] {
    std::map<std::string, std::vector<int64_t>> shapes;
    for (const WeightSpec& spec : list_target_weights(config))
      shapes[spec.name] = spec.shape;
    return shapes;
  };
  const auto plain = list();
  EXPECT_EQ(plain.at("model.layers.0.self_attn.q_proj.weight"), (std::vector<int64_t>{8, 4}));
  EXPECT_EQ(plain.at("model.layers.0.self_attn.k_proj.weight"), (std::vector<int64_t>{4, 4}));
  EXPECT_EQ(plain.count("model.layers.0.self_attn.q_proj.bias"), 0U);
  EXPECT_EQ(plain.count("model.layers.0.self_attn.q_norm.weight"), 0U);
  config.has_attention_bias = true;
  config.has_mlp_bias = true;
  const auto biased = list();
  EXPECT_EQ(biased.at("model.layers.0.self_attn.q_proj.bias"), (std::vector<int64_t>{8}));
  EXPECT_EQ(biased.at("model.layers.0.mlp.down_proj.bias"), (std::vector<int64_t>{4}));
  EXPECT_EQ(biased.size(), plain.size() + 7);
}

}  // namespace
}  // namespace draftsmith::model
