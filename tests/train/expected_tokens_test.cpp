// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/expected_tokens.h"

#include <gtest/gtest.h>

#include <cmath>

#include "draftsmith/eval/draft_tree.h"

#include "tests/support/reference.h"
#include "tests/train/tiny_batches.h"

namespace draftsmith::train {
namespace {

constexpr int64_t kBlocks = 6;
constexpr int64_t kSlots = 4;  // K
constexpr int64_t kVocabSize = 5;

/// Blocks with random logits and labels; slots 1 .. 3 are supervised as `supervised` says.
struct Case {
  torch::Tensor logits = testing::random_normal({kBlocks * kSlots, kVocabSize}, 3) * 2;
  data::DraftBlocks blocks;
  ops::LossTerms terms;

  explicit Case(const std::vector<int64_t>& supervised = {1, 1, 1}) {
    blocks.labels = torch::arange(kBlocks * kSlots, torch::kLong)
                        .remainder(kVocabSize)
                        .view({1, kBlocks, kSlots});
    blocks.weights = torch::zeros({1, kBlocks, kSlots});
    for (int64_t k = 1; k < kSlots; ++k)
      blocks.weights.select(2, k).fill_(supervised[static_cast<size_t>(k - 1)]);
    const auto log_probs = logits.log_softmax(-1);
    terms.label_probability =
        log_probs.gather(1, blocks.labels.view({-1, 1})).exp().flatten().to(torch::kFloat);
    const auto [values, ids] = log_probs.sort(-1, /*descending=*/true);
    terms.top_ids = ids;
    terms.top_log_probs = values;
  }

  double label_probability(int64_t n, int64_t k) const {
    return terms.label_probability[n * kSlots + k].item<double>();
  }
};

TEST(ExpectedTokens, AddUpPrefixesOfTheLabelsProbabilities) {
  const Case c;
  double expected = 0;
  for (int64_t n = 0; n < kBlocks; ++n) {
    double prefix = 1;
    for (int64_t k = 1; k < kSlots; ++k)
      expected += prefix *= c.label_probability(n, k);
  }
  const auto sums = sum_expected_tokens(c.terms, c.blocks, 4);
  EXPECT_NEAR(sums.chain_sum, expected, 1e-6);
  EXPECT_EQ(sums.tree_blocks, kBlocks);
  const auto chains = sum_expected_tokens(c.terms, c.blocks, 0);
  EXPECT_EQ(chains.chain_sum, sums.chain_sum);
  EXPECT_EQ(chains.tree_blocks, 0);
}

TEST(ExpectedTokens, AddUpTheNodesOfTheTreesThatDecodingBuilds) {
  const Case c;
  for (const int64_t budget : {1, 7, 40}) {
    double expected = 0;
    for (int64_t n = 0; n < kBlocks; ++n)
      expected += eval::build_draft_tree(
                      c.logits.narrow(0, n * kSlots + 1, kSlots - 1).to(torch::kFloat), budget)
                      .expected_accepted();
    EXPECT_NEAR(sum_expected_tokens(c.terms, c.blocks, budget).tree_sum, expected, 1e-5);
  }
}

TEST(ExpectedTokens, FollowTheLabelsThroughTheTree) {
  const Case c;
  // All 5 + 25 + 125 prefixes: every label is a node.
  EXPECT_EQ(sum_expected_tokens(c.terms, c.blocks, 155).tree_accepted_sum, kBlocks * 3);
  // One node: the best guess of slot 1.
  const auto best = c.logits.argmax(-1).view({kBlocks, kSlots}).select(1, 1);
  const auto right = best.eq(c.blocks.labels[0].select(1, 1)).sum().item<int64_t>();
  EXPECT_EQ(sum_expected_tokens(c.terms, c.blocks, 1).tree_accepted_sum, right);
  int64_t before = 0;
  for (const int64_t budget : {1, 2, 5, 10, 40, 100}) {
    const auto accepted = sum_expected_tokens(c.terms, c.blocks, budget).tree_accepted_sum;
    EXPECT_GE(accepted, before);
    before = accepted;
  }
}

TEST(ExpectedTokens, LetUnsupervisedSlotsNeitherBreakAPrefixNorCount) {
  const Case c({1, 0, 1});
  double expected = 0;
  for (int64_t n = 0; n < kBlocks; ++n)
    expected += c.label_probability(n, 1) * (1 + c.label_probability(n, 3));
  const auto sums = sum_expected_tokens(c.terms, c.blocks, 30);  // 5 + 25: all prefixes
  EXPECT_NEAR(sums.chain_sum, expected, 1e-6);
  EXPECT_NEAR(sums.tree_sum, 2 * kBlocks, 1e-5);  // each depth's probabilities add up to 1
  EXPECT_EQ(sums.tree_accepted_sum, 2 * kBlocks);
  EXPECT_EQ(sum_expected_tokens(c.terms, Case({0, 0, 0}).blocks, 30).tree_blocks, 0);
}

TEST(ExpectedTokens, ChangeNothingOfAStep) {
  const auto target = testing::load_target("targets/qwen3-tiny");
  const auto drafter = testing::make_tiny_drafter(target);
  const auto batch = testing::make_batch(
      target, drafter, {testing::make_sequence(20, 4, 1), testing::make_sequence(17, 4, 2)}, 10);
  const auto loss = testing::make_loss(10, 0.15, 0.1);
  const auto with = run_micro_step(drafter, target.lm_head(), batch, loss, true, {}, 32);
  const auto without = run_micro_step(drafter, target.lm_head(), batch, loss);
  EXPECT_EQ(with.sums.loss_sum, without.sums.loss_sum);
  for (size_t i = 0; i < with.gradients.size(); ++i)
    EXPECT_TRUE(with.gradients[i].equal(without.gradients[i]));
  EXPECT_EQ(without.sums.expected.tree_blocks, 0);
  EXPECT_EQ(with.sums.expected.tree_blocks, with.sums.blocks);
  EXPECT_GT(with.sums.chain_expected_tokens(), 0);
  EXPECT_EQ(without.sums.chain_expected_tokens(), with.sums.chain_expected_tokens());
  EXPECT_GT(with.sums.tree_expected_tokens(), 0);
  EXPECT_GE(with.sums.tree_expected_acceptance(), 1);
}

}  // namespace
}  // namespace draftsmith::train
