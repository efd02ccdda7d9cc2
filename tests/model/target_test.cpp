// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/model/target.h"

#include <gtest/gtest.h>

#include <cmath>

#include "draftsmith/base/error.h"

#include "tests/support/golden.h"
#include "tests/support/reference.h"
#include "tests/support/tiny_models.h"

namespace draftsmith::model {
namespace {

using testing::golden;
using testing::max_difference;

constexpr double kTolerance = 5e-5;  // the fixtures' own, for float32
const std::vector<int64_t> kAllLayers = {0, 1, 2, 3};

struct TargetFixture : ::testing::TestWithParam<const char*> {
  Target target = testing::load_target(GetParam());
  formats::SafetensorsReader file = golden(std::string(GetParam()) + "/expected.safetensors");

  torch::Tensor ids(const char* which = "long") const {
    return file.tensor(std::string(which) + ".input_ids");
  }
  /// Entry 0 is the embedding, entry l + 1 the output of layer l, the last one after the norm.
  torch::Tensor entry(int64_t index, const char* which = "long") const {
    return file.tensor(std::string(which) + ".hidden_states")[index].unsqueeze(0);
  }
};

TEST_P(TargetFixture, EqualsTheReferenceHiddenStatesAndLogits) {
  for (const char* which : {"long", "short"}) {
    const std::string prefix = std::string(which) + ".";
    const auto states = target.forward(ids(which), kAllLayers);
    const auto layers = states.features.chunk(4, -1);
    EXPECT_LE(max_difference(target.embed(ids(which)), entry(0, which)), 0);
    for (int64_t l = 0; l < 3; ++l)
      EXPECT_LE(max_difference(layers[static_cast<size_t>(l)], entry(l + 1, which)), kTolerance)
          << which << l;
    EXPECT_LE(max_difference(layers[3], file.tensor(prefix + "last_layer_output")), kTolerance);
    EXPECT_LE(max_difference(states.last, entry(4, which)), kTolerance);
    EXPECT_LE(
        max_difference(target.logits(states.last), file.tensor(prefix + "logits")), kTolerance);
  }
}

TEST_P(TargetFixture, CapturesTheOutputsOfTheListedLayers) {
  // F04: id l is entry l + 1, in the order of the list, and not its neighbour.
  const auto features = target.forward(ids(), {0, 2}).features;
  const auto first = features.narrow(-1, 0, 64);
  const auto second = features.narrow(-1, 64, 64);
  EXPECT_LE(max_difference(first, entry(1)), kTolerance);
  EXPECT_LE(max_difference(second, entry(3)), kTolerance);
  for (const int64_t neighbour : {0, 2}) {
    EXPECT_GT(max_difference(first, entry(neighbour)), 1e-2);
    EXPECT_GT(max_difference(second, entry(neighbour)), 1e-2);
  }
  const auto swapped = target.forward(ids(), {2, 0}).features;
  EXPECT_TRUE(swapped.equal(torch::cat({second, first}, -1)));
}

TEST_P(TargetFixture, CapturesTheLastLayerBeforeTheFinalNorm) {
  const auto states = target.forward(ids(), {3});
  EXPECT_LE(max_difference(states.features, file.tensor("long.last_layer_output")), kTolerance);
  EXPECT_GT(max_difference(states.features, states.last), 1e-2);
}

TEST_P(TargetFixture, IsNotChangedByPaddingOnTheRight) {
  const auto plain = target.forward(ids("short"), kAllLayers);
  auto padded = torch::full({2, 12}, 17, torch::kLong);
  padded[0].narrow(0, 0, 5).copy_(ids("short")[0]);
  padded[1].copy_(ids("long")[0].narrow(0, 0, 12));
  const auto states = target.forward(padded, kAllLayers);
  EXPECT_LE(max_difference(states.features[0].narrow(0, 0, 5), plain.features[0]), 1e-5);
  EXPECT_LE(max_difference(states.last[0].narrow(0, 0, 5), plain.last[0]), 1e-5);
  const auto longer = target.forward(ids("long").narrow(1, 0, 12), kAllLayers);
  EXPECT_LE(max_difference(states.last[1], longer.last[0]), 1e-5);
}

TEST_P(TargetFixture, RefusesLayersThatCannotBeServed) {
  EXPECT_NO_THROW(target.check_layer_ids({0, 1, 2}));
  for (const int64_t id : {3, 4, -1})
    testing::expect_error<ConfigError>(
        [&] {
          target.check_layer_ids({0, id});
        },
        {"target_layer_ids", "0 to 2", std::to_string(id)});
}

TEST_P(TargetFixture, RecordsNoGradients) {
  const auto states = target.forward(ids("short"), {0});
  EXPECT_FALSE(states.features.requires_grad());
  EXPECT_FALSE(states.last.requires_grad());
}

TEST_P(TargetFixture, RunsInBfloat16CloseToFloat32) {
  const auto half = testing::load_target(GetParam(), "bfloat16");
  EXPECT_EQ(half.dtype(), torch::kBFloat16);
  const auto states = half.forward(ids(), kAllLayers);
  EXPECT_EQ(states.features.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(half.rope().inverse_frequencies().scalar_type(), torch::kFloat);
  // About a dozen roundings in each of four layers, each of at most 2^-8 of the value and of
  // either sign.
  EXPECT_LE(testing::relative_difference(states.last, entry(4)), std::sqrt(48.0) * std::exp2(-8));
  EXPECT_GT(testing::relative_difference(states.last, entry(4)), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Targets,
    TargetFixture,
    ::testing::Values("targets/llama-tiny", "targets/qwen3-tiny"),
    [](const auto& tested) {
      return std::string(tested.param).find("llama") != std::string::npos ? "llama" : "qwen3";
    });

TEST(Target, RefusesAnUnknownDeviceAndAMissingPath) {
  TargetSettings settings;
  testing::expect_error<ConfigError>([&] { Target::load(settings); }, {"target.path"});
  settings.path = testing::fixture("targets/qwen3-tiny").string();
  settings.device = "tpu";
  testing::expect_error<DeviceError>([&] { Target::load(settings); }, {"target.device", "tpu"});
}

}  // namespace
}  // namespace draftsmith::model
