// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/metrics.h"

#include <gtest/gtest.h>

namespace draftsmith::train {
namespace {

/// Blocks of 4 whose labels are all 7; `supervised` and `is_correct` hold slots 1 .. 3 of each.
MetricSums sum_blocks(
    const std::vector<std::vector<int64_t>>& supervised,
    const std::vector<std::vector<int64_t>>& is_correct,
    int64_t tokens = 10) {
  const auto N = static_cast<int64_t>(supervised.size());
  data::DraftBlocks blocks;
  blocks.labels = torch::full({1, N, 4}, 7, torch::kLong);
  blocks.weights = torch::zeros({1, N, 4});
  ops::LossTerms terms;
  terms.predicted = torch::full({4 * N}, -1, torch::kLong);
  terms.ce = torch::zeros({4 * N});
  terms.kl = torch::zeros({4 * N});
  terms.cap = torch::zeros({4 * N});
  for (int64_t n = 0; n < N; ++n) {
    for (int64_t k = 1; k < 4; ++k) {
      const auto slot = static_cast<size_t>(k - 1);
      if (supervised[static_cast<size_t>(n)][slot] == 0) continue;
      blocks.weights[0][n][k] = 1.0 / static_cast<double>(k);
      terms.predicted[4 * n + k] = is_correct[static_cast<size_t>(n)][slot] != 0 ? 7 : 8;
      terms.ce[4 * n + k] = 6;
      terms.kl[4 * n + k] = 12;
      terms.cap[4 * n + k] = 18;
    }
  }
  terms.weight_sum = blocks.weights.sum();
  terms.weights = blocks.weights.flatten();
  terms.loss_sum = (blocks.weights.flatten() * terms.ce).sum();
  return sum_metrics(terms, blocks, tokens);
}

TEST(Metrics, CountAcceptanceAsInTheWorkedExample) {
  EXPECT_EQ(sum_blocks({{1, 1, 0}}, {{1, 0, 0}}).expected_acceptance(), 2);
  EXPECT_EQ(sum_blocks({{1, 1, 0}}, {{1, 1, 0}}).expected_acceptance(), 3);
  EXPECT_EQ(sum_blocks({{1, 1, 1}}, {{0, 1, 1}}).expected_acceptance(), 1);
  EXPECT_EQ(sum_blocks({{1, 1, 1}}, {{1, 1, 1}}).expected_acceptance(), 4);
}

TEST(Metrics, LetUnsupervisedSlotsNeitherBreakThePrefixNorCount) {
  EXPECT_EQ(sum_blocks({{1, 0, 1}}, {{1, 0, 1}}).expected_acceptance(), 3);
  EXPECT_EQ(sum_blocks({{0, 1, 1}}, {{0, 1, 0}}).expected_acceptance(), 2);
}

TEST(Metrics, LeaveOutBlocksWithoutALabel) {
  const auto sums = sum_blocks({{1, 1, 0}, {0, 0, 0}}, {{1, 1, 0}, {0, 0, 0}});
  EXPECT_EQ(sums.blocks, 1);
  EXPECT_EQ(sums.expected_acceptance(), 3);
  EXPECT_EQ(sum_blocks({{0, 0, 0}}, {{0, 0, 0}}).expected_acceptance(), 0);
}

TEST(Metrics, GiveAccuracyBySlotAndOverAll) {
  const auto sums = sum_blocks({{1, 1, 1}, {1, 1, 0}}, {{1, 0, 1}, {1, 0, 0}});
  EXPECT_EQ(sums.count, (std::vector<int64_t>{0, 2, 2, 1}));
  EXPECT_EQ(sums.correct, (std::vector<int64_t>{0, 2, 0, 1}));
  EXPECT_EQ(sums.accuracy_by_slot(), (std::vector<double>{1, 0, 1}));
  EXPECT_DOUBLE_EQ(sums.accuracy(), 0.6);
}

TEST(Metrics, WeighTheLossesAsTheLossDoes) {
  const auto sums = sum_blocks({{1, 1, 0}}, {{1, 1, 0}});
  EXPECT_DOUBLE_EQ(sums.weight_sum, 1.5);
  EXPECT_DOUBLE_EQ(sums.ce_sum, 9);
  EXPECT_DOUBLE_EQ(sums.kl_sum, 18);
  EXPECT_DOUBLE_EQ(sums.cap_sum, 27);
  EXPECT_DOUBLE_EQ(sums.ce(), 6);
  EXPECT_DOUBLE_EQ(sums.loss(), 6);
}

TEST(Metrics, AddUpToThoseOfTheWhole) {
  auto sums = sum_blocks({{1, 1, 1}}, {{1, 1, 0}}, 10);
  sums += sum_blocks({{1, 0, 0}, {1, 1, 0}}, {{0, 0, 0}, {1, 1, 0}}, 20);
  const auto whole =
      sum_blocks({{1, 1, 1}, {1, 0, 0}, {1, 1, 0}}, {{1, 1, 0}, {0, 0, 0}, {1, 1, 0}}, 30);
  EXPECT_EQ(sums.correct, whole.correct);
  EXPECT_EQ(sums.count, whole.count);
  EXPECT_EQ(sums.blocks, whole.blocks);
  EXPECT_EQ(sums.all_blocks, 3);
  EXPECT_EQ(whole.all_blocks, 3);
  EXPECT_EQ(sums.accepted_sum, whole.accepted_sum);
  EXPECT_EQ(sums.tokens, whole.tokens);
  EXPECT_NEAR(sums.weight_sum, whole.weight_sum, 1e-6);
  EXPECT_NEAR(sums.loss_sum, whole.loss_sum, 1e-5);
  MetricSums empty;
  empty += whole;
  EXPECT_EQ(empty.count, whole.count);
  EXPECT_EQ(empty.loss(), whole.loss());
}

TEST(Metrics, SayHowManyBlocksOnlyFillAShape) {
  EXPECT_EQ(sum_blocks({{1, 1, 1}, {1, 0, 0}}, {{1, 1, 0}, {0, 0, 0}}).empty_blocks(), 0);
  EXPECT_DOUBLE_EQ(
      sum_blocks({{1, 1, 1}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}}, {{1, 1, 0}, {}, {}, {}})
          .empty_blocks(),
      0.75);
}

TEST(Metrics, AreZeroWithoutAnything) {
  const MetricSums sums;
  EXPECT_EQ(sums.loss(), 0);
  EXPECT_EQ(sums.accuracy(), 0);
  EXPECT_EQ(sums.expected_acceptance(), 0);
  EXPECT_TRUE(sums.accuracy_by_slot().empty());
}

}  // namespace
}  // namespace draftsmith::train
