// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/model/drafter.h"

#include <gtest/gtest.h>

#include "draftsmith/base/error.h"

#include "tests/model/tiny_checkpoint.h"
#include "tests/support/reference.h"
#include "tests/support/tiny_models.h"

namespace draftsmith::model {
namespace {

using testing::expect_error;
using testing::fixture;
using testing::golden;
using testing::max_difference;
using testing::random_normal;
using testing::TempFolder;

const Target& tiny_target() {
  static const auto target = testing::load_target("targets/qwen3-tiny");
  return target;
}

struct DrafterFixture : ::testing::TestWithParam<const char*> {
  Drafter drafter = Drafter::load(fixture(GetParam()), torch::kFloat);

  torch::Tensor embed_block(const torch::Tensor& block_ids) const {
    return tiny_target().embed(block_ids.flatten(1));
  }
};

TEST_P(DrafterFixture, EqualsTheReferenceHiddenStates) {
  const auto file = golden(std::string(GetParam()) + "/expected.safetensors");
  const auto blocks = data::make_draft_blocks(
      {file.tensor("input_ids"), file.tensor("loss_mask"), {}},
      {file.tensor("anchors"), file.tensor("keep")}, drafter.block_rule(0));
  const auto hidden =
      drafter.forward(embed_block(blocks.block_ids), file.tensor("target_hidden"), blocks);
  // Blocks that are not kept have no defined states.
  const auto kept = blocks.layout.keep.unsqueeze(-1).expand({2, 4, 4}).reshape({2, 16});
  const auto expected = file.tensor("output_hidden");
  EXPECT_EQ(kept.sum().item<int64_t>() % 4, 0);
  EXPECT_LE(max_difference(hidden.index({kept}), expected.index({kept})), 1e-4);
  EXPECT_GT(expected.index({kept}).abs().max().item<double>(), 0.1);
}

TEST_P(DrafterFixture, SaysTheSameInTrainingAndInDecoding) {
  constexpr int64_t S = 40;
  const auto ids = torch::tensor(testing::make_ids(S, 200, 1), torch::kLong).unsqueeze(0);
  const auto features = tiny_target().forward(ids, {0, 2}).features;
  const std::vector<int64_t> anchors = {0, 1, 2, 5, 6, 7, 20, 37, 39};
  const auto N = static_cast<int64_t>(anchors.size());
  const auto blocks = data::make_draft_blocks(
      {ids, torch::ones_like(ids), {}},
      {torch::tensor(anchors, torch::kLong).unsqueeze(0), torch::ones({1, N}, torch::kBool)},
      drafter.block_rule(0));
  const auto trained = drafter.forward(embed_block(blocks.block_ids), features, blocks);
  for (int64_t n = 0; n < N; ++n) {
    const int64_t anchor = anchors[static_cast<size_t>(n)];
    auto cache = drafter.make_cache(1, S);
    const int64_t first = anchor / 3;  // the context arrives in two pieces
    if (first > 0) drafter.append_context(cache, features.narrow(1, 0, first));
    if (anchor > first) drafter.append_context(cache, features.narrow(1, first, anchor - first));
    EXPECT_EQ(cache.lengths().front(), anchor);
    const auto decoded = drafter.draft(embed_block(blocks.block_ids.narrow(1, n, 1)), cache);
    EXPECT_LE(max_difference(decoded, trained.narrow(1, 4 * n, 4)), 1e-5) << anchor;
  }
}

TEST_P(DrafterFixture, SeesNothingOfItsContextAtOrAfterTheAnchor) {
  const auto ids = torch::tensor(testing::make_ids(12, 200, 1), torch::kLong).unsqueeze(0);
  const auto features = tiny_target().forward(ids, {0, 2}).features;
  const auto blocks = data::make_draft_blocks(
      {ids, torch::ones_like(ids), {}},
      {torch::tensor({3, 5}, torch::kLong).unsqueeze(0), torch::ones({1, 2}, torch::kBool)},
      drafter.block_rule(0));
  const auto run = [&](int64_t begin, int64_t count) {
    auto noisy = features.clone();
    noisy.narrow(1, begin, count) += 10 * random_normal({1, count, 128}, 2).to(torch::kFloat);
    return drafter.forward(embed_block(blocks.block_ids), noisy, blocks);
  };
  const auto before = drafter.forward(embed_block(blocks.block_ids), features, blocks);
  EXPECT_TRUE(run(5, 7).equal(before));
  const auto after = run(4, 1);
  EXPECT_TRUE(after.narrow(1, 0, 4).equal(before.narrow(1, 0, 4)));
  EXPECT_GT(max_difference(after.narrow(1, 4, 4), before.narrow(1, 4, 4)), 1e-3);
}

TEST_P(DrafterFixture, ComesBackBitForBitFromItsFolder) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    const TempFolder folder;
    const auto before = Drafter::load(fixture(GetParam()), dtype);
    before.save(folder.path(), dtype);
    const auto after = Drafter::load(folder.path(), dtype);
    ASSERT_EQ(after.parameters().size(), before.parameters().size());
    for (size_t i = 0; i < before.parameters().size(); ++i) {
      EXPECT_EQ(after.parameters()[i].first, before.parameters()[i].first);
      EXPECT_TRUE(after.parameters()[i].second.equal(before.parameters()[i].second));
    }
    EXPECT_EQ(after.config().block_size, before.config().block_size);
    EXPECT_EQ(after.config().mask_token_id, before.config().mask_token_id);
    EXPECT_EQ(after.config().target_layer_ids, before.config().target_layer_ids);
    EXPECT_EQ(after.config().is_sliding, before.config().is_sliding);
    EXPECT_EQ(after.config().sliding_window, before.config().sliding_window);
    EXPECT_EQ(after.config().is_causal, before.config().is_causal);
    EXPECT_EQ(after.config().rope.theta, before.config().rope.theta);
    EXPECT_EQ(after.config().rms_norm_eps, before.config().rms_norm_eps);
  }
}

TEST_P(DrafterFixture, RoundsToTheDtypeItIsSavedIn) {
  const TempFolder folder;
  drafter.save(folder.path(), torch::kBFloat16);
  const auto after = Drafter::load(folder.path(), torch::kFloat);
  for (size_t i = 0; i < after.parameters().size(); ++i)
    EXPECT_TRUE(after.parameters()[i].second.equal(
        drafter.parameters()[i].second.to(torch::kBFloat16).to(torch::kFloat)));
}

INSTANTIATE_TEST_SUITE_P(
    Drafters,
    DrafterFixture,
    ::testing::Values("drafter/full", "drafter/sliding"),
    [](const auto& tested) { return std::string(tested.param).substr(8); });

TEST(Drafter, CountsItsParametersAsTheFormulaDoes) {
  const auto drafter = Drafter::load(fixture("drafter/full"), torch::kFloat);
  // F H H + 2 H + L (2 H C + 2 H G + 3 H I + 2 H + 2 d) + H of the final norm
  const int64_t H = 64, C = 64, G = 32, I = 96, d = 16, F = 2, L = 2;
  EXPECT_EQ(
      drafter.num_parameters(),
      F * H * H + H + H + L * (H * C + 2 * H * G + C * H + 3 * H * I + 2 * H + 2 * d));
}

TEST(Drafter, LimitsItsSlidingLayersByTheWindow) {
  const auto sliding = Drafter::load(fixture("drafter/sliding"), torch::kFloat);
  EXPECT_EQ(sliding.config().sliding_window, 6);
  testing::TinyCheckpoint checkpoint("drafter/sliding");
  checkpoint.config["sliding_window"] = 1000;
  const auto wide = Drafter::load(checkpoint.write(), torch::kFloat);
  const auto draft = [](const Drafter& drafter) {
    auto cache = drafter.make_cache(1, 40);
    drafter.append_context(cache, random_normal({1, 30, 128}, 1).to(torch::kFloat));
    return drafter.draft(random_normal({1, 4, 64}, 2).to(torch::kFloat), cache);
  };
  EXPECT_GT(max_difference(draft(sliding), draft(wide)), 1e-3);
}

TEST(Drafter, RefusesFeaturesOfAnotherWidth) {
  const auto drafter = Drafter::load(fixture("drafter/full"), torch::kFloat);
  auto cache = drafter.make_cache(1, 4);
  expect_error<ShapeError>(
      [&] {
        drafter.append_context(cache, torch::zeros({1, 2, 64}));
      },
      {"features", "128"});
}

TEST(Drafter, NamesATensorThatItsFolderLacks) {
  testing::TinyCheckpoint checkpoint("drafter/full");
  checkpoint.tensors.erase("hidden_norm.weight");
  expect_error<DataError>(
      [&] { Drafter::load(checkpoint.write(), torch::kFloat); }, {"hidden_norm.weight"});
}

TEST(Drafter, IsReadOffTheFileSoThatItCanBeTrained) {
  testing::TinyCheckpoint checkpoint("drafter/full");
  const auto folder = checkpoint.write();
  const std::string bytes = read_file(folder / "model.safetensors");
  const auto drafter = Drafter::load(folder, torch::kFloat);
  for (const auto& [name, tensor] : drafter.parameters())
    torch::Tensor(tensor).fill_(3);
  EXPECT_EQ(read_file(folder / "model.safetensors"), bytes);
}

}  // namespace
}  // namespace draftsmith::model
