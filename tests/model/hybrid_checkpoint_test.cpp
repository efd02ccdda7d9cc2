// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "draftsmith/base/error.h"
#include "draftsmith/model/drafter_init.h"

#include "tests/model/tiny_checkpoint.h"
#include "tests/support/reference.h"
#include "tests/support/tiny_models.h"

namespace draftsmith::model {
namespace {

using testing::expect_error;
using testing::max_difference;
using testing::TinyCheckpoint;

constexpr const char* kHybrid = "targets/qwen3_5-tiny";

/// The text-only fixture as the multimodal wrapper that checkpoints are published as.
struct Wrapped : TinyCheckpoint {
  explicit Wrapped(const std::string& name, const std::string& outer_type) : TinyCheckpoint(name) {
    std::map<std::string, torch::Tensor> nested;
    for (const auto& [tensor, value] : tensors)
      nested[tensor.rfind("model.", 0) == 0 ? "model.language_model." + tensor.substr(6) : tensor] =
          value;
    tensors = nested;
    auto text = config;
    config = {{"model_type", outer_type}, {"text_config", text}, {"eos_token_id", {1, 2}}};
  }
};

torch::Tensor fixed_ids() {
  return torch::tensor(testing::make_ids(10, 211, 5), torch::kLong).unsqueeze(0);
}

TEST(HybridCheckpoint, GivesTheSameWithinItsWrapper) {
  const auto plain = testing::load_target(kHybrid).forward(fixed_ids(), {0, 3, 6});
  Wrapped wrapped(kHybrid, "qwen3_5");
  wrapped.tensors["model.visual.patch_embed.weight"] = torch::zeros({2});
  wrapped.tensors["mtp.layers.0.self_attn.q_proj.weight"] = torch::zeros({2});
  ::testing::internal::CaptureStderr();
  const auto target = wrapped.load();
  const std::string log = ::testing::internal::GetCapturedStderr();
  const auto states = target.forward(fixed_ids(), {0, 3, 6});
  EXPECT_TRUE(states.features.equal(plain.features));
  EXPECT_TRUE(states.last.equal(plain.last));
  EXPECT_EQ(log.find("warning"), std::string::npos) << log;
  for (const char* name : {"2 tensors are not used", "model.visual.patch_embed", "mtp.layers.0"}) {
    const size_t first = log.find(name);
    EXPECT_NE(first, std::string::npos) << log;
    EXPECT_EQ(log.find(name, first + 1), std::string::npos) << log;
  }
}

TEST(HybridCheckpoint, TakesTheWholeModelsWordOnATiedHead) {
  // F19, the fifth way: tied at the top level, not in the text part, nested names.
  for (const char* name : {kHybrid, "targets/llama-tiny"}) {
    Wrapped wrapped(name, "some_wrapper");
    wrapped.config["tie_word_embeddings"] = true;
    wrapped.config["text_config"]["tie_word_embeddings"] = false;
    wrapped.tensors.erase("lm_head.weight");
    const auto target = wrapped.load();
    const auto& embedding = wrapped.tensors.at("model.language_model.embed_tokens.weight");
    const auto last = target.forward(fixed_ids(), {}).last;
    EXPECT_LE(max_difference(target.logits(last), torch::matmul(last, embedding.t())), 1e-5);
  }
  Wrapped untied(kHybrid, "qwen3_5");
  untied.tensors.erase("lm_head.weight");
  expect_error<DataError>([&] { untied.load(); }, {"lm_head.weight"});
}

TEST(HybridCheckpoint, ReadsDecaysInBfloat16OrFloat32AndKeepsThemFloat32) {
  TinyCheckpoint narrow(kHybrid);
  TinyCheckpoint wide(kHybrid);
  for (auto& [name, tensor] : narrow.tensors) {
    if (name.find("A_log") == std::string::npos && name.find("dt_bias") == std::string::npos)
      continue;
    tensor = tensor.to(torch::kBFloat16);
    wide.tensors.at(name) = tensor.to(torch::kFloat);
  }
  const auto from_narrow = narrow.load();
  EXPECT_TRUE(
      from_narrow.forward(fixed_ids(), {}).last.equal(wide.load().forward(fixed_ids(), {}).last));
  const auto half = TinyCheckpoint(kHybrid).load("bfloat16");
  EXPECT_EQ(half.layers()[0].delta->log_decay.scalar_type(), torch::kFloat);
  EXPECT_TRUE(half.layers()[0].delta->log_decay.equal(
      TinyCheckpoint(kHybrid).tensors.at("model.layers.0.linear_attn.A_log")));
}

TEST(HybridCheckpoint, NamesAMissingTensor) {
  for (const char* name :
       {"model.layers.0.linear_attn.A_log", "model.layers.1.linear_attn.conv1d.weight",
        "model.layers.3.self_attn.q_norm.weight", "model.layers.6.linear_attn.in_proj_z.weight"}) {
    TinyCheckpoint checkpoint(kHybrid);
    ASSERT_EQ(checkpoint.tensors.erase(name), 1U) << name;
    expect_error<DataError>([&] { checkpoint.load(); }, {name});
  }
}

TEST(HybridCheckpoint, NamesATensorOfAnotherShape) {
  // Queries without gates, as a model of another family would have them.
  TinyCheckpoint checkpoint(kHybrid);
  auto& tensor = checkpoint.tensors.at("model.layers.3.self_attn.q_proj.weight");
  tensor = tensor.narrow(0, 0, 128).contiguous();
  expect_error<DataError>(
      [&] { checkpoint.load(); }, {"model.layers.3.self_attn.q_proj.weight", "[256, 64]"});
}

TEST(HybridCheckpoint, DerivesTheKindsOfLayersThatAreNotListed) {
  TinyCheckpoint checkpoint(kHybrid);
  const auto wanted = checkpoint.load().forward(fixed_ids(), {}).last;
  checkpoint.config.erase("layer_types");
  EXPECT_TRUE(checkpoint.load().forward(fixed_ids(), {}).last.equal(wanted));
}

TEST(HybridCheckpoint, IsNotChangedByPaddingOnTheRight) {
  // F08 to 1e-5. Keys that resemble the queries: where both are nearly at right angles, as in the
  // fixture, the norm behind the delta rule enlarges the rounding of other sizes of products.
  TinyCheckpoint checkpoint(kHybrid);
  for (auto& [name, tensor] : checkpoint.tensors)
    if (name.find("in_proj_qkv") != std::string::npos || name.find("conv1d") != std::string::npos)
      tensor.narrow(0, 32, 32).copy_(tensor.narrow(0, 0, 32));
  const auto target = checkpoint.load();
  const std::vector<int64_t> layers = {0, 1, 2, 3, 4, 5, 6};
  for (const int64_t length : {1, 3, 5, 63, 64, 65}) {
    const auto ids = torch::tensor(testing::make_ids(length, 211, 5), torch::kLong);
    auto padded = torch::full({2, 70}, 17, torch::kLong);
    padded[0].narrow(0, 0, length).copy_(ids);
    padded[1] = torch::tensor(testing::make_ids(70, 211, 9), torch::kLong);
    const auto alone = target.forward(ids.unsqueeze(0), layers);
    const auto beside = target.forward(padded, layers);
    const auto difference = [&](const torch::Tensor& rows, const torch::Tensor& own) {
      return max_difference(rows[0].narrow(0, 0, length), own[0]);
    };
    EXPECT_LE(difference(beside.features, alone.features), 1e-5) << length;
    EXPECT_LE(difference(beside.last, alone.last), 1e-5) << length;
  }
}

TEST(HybridCheckpoint, SaysWhichImplementationsRun) {
  ::testing::internal::CaptureStderr();
  testing::load_target(kHybrid);
  const std::string log = ::testing::internal::GetCapturedStderr();
  for (const char* part : {"matrix products: ", "attention: ", "norms, ", "delta rule: "})
    EXPECT_NE(log.find(part), std::string::npos) << log;
}

TEST(HybridCheckpoint, CannotGiveItsLayersToADrafter) {
  const auto target = testing::load_target(kHybrid);
  auto settings = testing::tiny_drafter_settings("target");
  expect_error<ConfigError>(
      [&] { make_drafter(settings, {}, target, fixed_ids(), 1); }, {"drafter.init"});
  settings.init = "random";
  EXPECT_EQ(make_drafter(settings, {}, target, fixed_ids(), 1).config().rope.theta, 10000);
}

}  // namespace
}  // namespace draftsmith::model
