// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/model/target.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "draftsmith/base/error.h"

#include "tests/support/golden.h"
#include "tests/support/reference.h"
#include "tests/support/tiny_models.h"

namespace draftsmith::model {
namespace {

using testing::golden;
using testing::max_difference;


struct TargetFixture : ::testing::TestWithParam<const char*> {
  Target target = testing::load_target(GetParam());
  int64_t L = target.config().num_layers;
  // The fixtures' own, for float32: the hybrid one carries an error of 1.5e-4 itself.
  double tolerance = target.config().is_hybrid() ? 1e-3 : 5e-5;
  // Matrix products of other sizes add in another order. The hybrid's values before its gated norm
  // are so small that this shows: the fixture itself has an error of 1.5e-4.
  double alone_tolerance = target.config().is_hybrid() ? 1.5e-4 : 1e-5;
  formats::SafetensorsReader file = golden(std::string(GetParam()) + "/expected.safetensors");

  std::vector<int64_t> all_layers() const {
    std::vector<int64_t> layers(static_cast<size_t>(L));
    std::iota(layers.begin(), layers.end(), 0);
    return layers;
  }
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
    const auto states = target.forward(ids(which), all_layers());
    const auto layers = states.features.chunk(L, -1);
    EXPECT_LE(max_difference(target.embed(ids(which)), entry(0, which)), 0);
    for (int64_t l = 0; l < L - 1; ++l)
      EXPECT_LE(max_difference(layers[static_cast<size_t>(l)], entry(l + 1, which)), tolerance)
          << which << l;
    EXPECT_LE(max_difference(layers.back(), file.tensor(prefix + "last_layer_output")), tolerance);
    EXPECT_LE(max_difference(states.last, entry(L, which)), tolerance);
    EXPECT_LE(
        max_difference(target.logits(states.last), file.tensor(prefix + "logits")), tolerance);
  }
}

TEST_P(TargetFixture, CapturesTheOutputsOfTheListedLayers) {
  // F04: id l is entry l + 1, in the order of the list, and not its neighbour.
  const auto features = target.forward(ids(), {0, 2}).features;
  const auto first = features.narrow(-1, 0, 64);
  const auto second = features.narrow(-1, 64, 64);
  EXPECT_LE(max_difference(first, entry(1)), tolerance);
  EXPECT_LE(max_difference(second, entry(3)), tolerance);
  for (const int64_t neighbour : {0, 2}) {
    EXPECT_GT(max_difference(first, entry(neighbour)), 1e-2);
    EXPECT_GT(max_difference(second, entry(neighbour)), 1e-2);
  }
  const auto swapped = target.forward(ids(), {2, 0}).features;
  EXPECT_TRUE(swapped.equal(torch::cat({second, first}, -1)));
}

TEST_P(TargetFixture, CapturesTheLastLayerBeforeTheFinalNorm) {
  const auto states = target.forward(ids(), {L - 1});
  EXPECT_LE(max_difference(states.features, file.tensor("long.last_layer_output")), tolerance);
  EXPECT_GT(max_difference(states.features, states.last), 1e-2);
}

TEST_P(TargetFixture, IsNotChangedByPaddingOnTheRight) {
  // F08: alone, and beside 70 tokens; lengths around the edge of a chunk.
  for (const int64_t length : {1, 3, 5, 63, 64, 65}) {
    const auto row = ids().narrow(1, 0, length);
    const auto run_padded = [&](int64_t pad, int64_t neighbour) {
      auto padded = torch::full({2, 70}, pad, torch::kLong);
      padded[0].narrow(0, 0, length).copy_(row[0]);
      padded[1].copy_(ids()[0].narrow(0, neighbour, 70));
      const auto states = target.forward(padded, all_layers());
      return TargetStates{
          states.features[0].narrow(0, 0, length), states.last[0].narrow(0, 0, length)};
    };
    const auto plain = target.forward(row, all_layers());
    const auto states = run_padded(17, 80);
    EXPECT_LE(max_difference(states.features, plain.features[0]), alone_tolerance) << length;
    EXPECT_LE(max_difference(states.last, plain.last[0]), alone_tolerance) << length;
    // What the padding and the neighbour are does not matter at all.
    const auto other = run_padded(99, 40);
    EXPECT_TRUE(other.features.equal(states.features)) << length;
    EXPECT_TRUE(other.last.equal(states.last)) << length;
  }
}

TEST_P(TargetFixture, RunsEveryDocumentOfAPackedRowAlone) {
  const std::vector<int64_t> lengths = {1, 3, 63, 64, 10};
  auto documents = torch::full({1, 150}, -1, torch::kLong);
  std::vector<TargetStates> alone;
  int64_t begin = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    documents[0].narrow(0, begin, lengths[i]).fill_(static_cast<int64_t>(7 * i));
    alone.push_back(target.forward(ids().narrow(1, begin, lengths[i]), all_layers()));
    begin += lengths[i];
  }
  const auto packed = target.forward(ids(), all_layers(), documents);
  begin = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    EXPECT_LE(
        max_difference(packed.features.narrow(1, begin, lengths[i]), alone[i].features),
        alone_tolerance)
        << i;
    EXPECT_LE(
        max_difference(packed.last.narrow(1, begin, lengths[i]), alone[i].last), alone_tolerance)
        << i;
    begin += lengths[i];
  }
}

TEST_P(TargetFixture, RefusesPaddingOnTheLeft) {
  auto documents = torch::zeros({2, 8}, torch::kLong);
  documents[1].narrow(0, 0, 3).fill_(-1);
  testing::expect_error<ShapeError>(
      [&] { target.forward(ids().narrow(1, 0, 16).view({2, 8}), {0}, documents); },
      {"document_ids", "row 1"});
}

TEST_P(TargetFixture, RefusesLayersThatCannotBeServed) {
  EXPECT_NO_THROW(target.check_layer_ids({0, 1, L - 2}));
  for (const int64_t id : {L - 1, L, int64_t{-1}})
    testing::expect_error<ConfigError>(
        [&] {
          target.check_layer_ids({0, id});
        },
        {"target_layer_ids", fmt::format("0 to {}", L - 2), std::to_string(id)});
}

TEST_P(TargetFixture, RecordsNoGradients) {
  const auto states = target.forward(ids("short"), {0});
  EXPECT_FALSE(states.features.requires_grad());
  EXPECT_FALSE(states.last.requires_grad());
}

TEST_P(TargetFixture, RunsInBfloat16CloseToFloat32) {
  const auto half = testing::load_target(GetParam(), "bfloat16");
  EXPECT_EQ(half.dtype(), torch::kBFloat16);
  const auto states = half.forward(ids(), all_layers());
  EXPECT_EQ(states.features.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(half.rope().inverse_frequencies().scalar_type(), torch::kFloat);
  // About a dozen roundings in each layer, each of at most 2^-8 of the value and of either sign.
  // What comes before the hybrid's gated norm counts several times, for its values are near eps.
  const double bound = (target.config().is_hybrid() ? 4 : 1) *
                       std::sqrt(12.0 * static_cast<double>(L)) * std::exp2(-8);
  EXPECT_LE(testing::relative_difference(states.last, entry(L)), bound);
  EXPECT_GT(testing::relative_difference(states.last, entry(L)), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Targets,
    TargetFixture,
    ::testing::Values("targets/llama-tiny", "targets/qwen3-tiny", "targets/qwen3_5-tiny"),
    [](const auto& tested) { return testing::short_name(tested.param); });

TEST(Target, RefusesAnUnknownDeviceAndAMissingPath) {
  TargetSettings settings;
  testing::expect_error<ConfigError>([&] { Target::load(settings); }, {"target.path"});
  settings.path = testing::fixture("targets/qwen3-tiny").string();
  settings.device = "tpu";
  testing::expect_error<DeviceError>([&] { Target::load(settings); }, {"target.device", "tpu"});
}

}  // namespace
}  // namespace draftsmith::model
