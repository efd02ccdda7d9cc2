// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/eval/acceptance.h"

#include <gtest/gtest.h>

#include "draftsmith/base/random.h"

namespace draftsmith::eval {
namespace {

using Tokens = std::vector<std::vector<int64_t>>;

constexpr int64_t kStop = 2;

/// F16's prompt P with blocks of 4: matches [1,1,0], [0,1,1], [1,1,1].
const Tokens kRoundsOfP = {{10, 11, 12}, {13}, {14, 15, 16, 17}};
/// The same with the third round's second draft a stop id.
const Tokens kRoundsOfQ = {{10, 11, 12}, {13}, {14, kStop, 16, 17}};

std::vector<int64_t> emitted(const std::vector<Round>& rounds) {
  std::vector<int64_t> counts;
  for (const Round& round : rounds)
    counts.push_back(round.emitted);
  return counts;
}

double pooled(const std::vector<Round>& rounds) { return report_acceptance({rounds}, 4).pooled; }

/// `count` rounds of `tokens` tokens each.
std::vector<Round> repeat(int64_t count, int64_t tokens) {
  return std::vector<Round>(static_cast<size_t>(count), {tokens - 1, tokens});
}

TEST(Acceptance, CountsTheTargetsOwnTokenOfEveryRound) {
  const auto rounds = count_emitted(kRoundsOfP, 100, {kStop});
  EXPECT_EQ(emitted(rounds), (std::vector<int64_t>{3, 1, 4}));
  EXPECT_DOUBLE_EQ(pooled(rounds), 8.0 / 3);
}

TEST(Acceptance, CutsARoundAtTheFirstStopId) {
  const auto rounds = count_emitted(kRoundsOfQ, 100, {99, kStop});
  EXPECT_EQ(emitted(rounds), (std::vector<int64_t>{3, 1, 2}));
  EXPECT_DOUBLE_EQ(pooled(rounds), 2);
  EXPECT_EQ(emitted(count_emitted(kRoundsOfQ, 100, {})), (std::vector<int64_t>{3, 1, 4}));
}

TEST(Acceptance, CountsNoRoundAfterAStopId) {
  EXPECT_EQ(emitted(count_emitted({{5, kStop}, {6, 7}}, 100, {kStop})), (std::vector<int64_t>{2}));
}

TEST(Acceptance, CutsARoundAtTheLimit) {
  const auto rounds = count_emitted(kRoundsOfP, 6, {});
  EXPECT_EQ(emitted(rounds), (std::vector<int64_t>{3, 1, 2}));
  EXPECT_DOUBLE_EQ(pooled(rounds), 2);
}

TEST(Acceptance, CountsNoRoundThatAddsNothing) {
  // The limit is met exactly after the second round; the raw loop still runs a third.
  const auto rounds = count_emitted(kRoundsOfP, 4, {});
  EXPECT_EQ(emitted(rounds), (std::vector<int64_t>{3, 1}));
  EXPECT_DOUBLE_EQ(pooled(rounds), 2);
  EXPECT_TRUE(count_emitted(kRoundsOfP, 0, {}).empty());
}

TEST(Acceptance, CountsSlotsByPrefix) {
  const auto report = report_acceptance({count_emitted(kRoundsOfP, 100, {})}, 4);
  EXPECT_EQ(report.by_slot, (std::vector<double>{2.0 / 3, 2.0 / 3, 1.0 / 3}));
  EXPECT_EQ(report.histogram, (std::vector<int64_t>{0, 1, 0, 1, 1}));
}

TEST(Acceptance, PoolsTokensOverRoundsAndNamesTheMeanOfMeansApart) {
  const auto report = report_acceptance({repeat(1, 4), repeat(3, 1)}, 4);
  EXPECT_DOUBLE_EQ(report.pooled, 7.0 / 4);
  EXPECT_DOUBLE_EQ(report.mean_per_response, 2.5);
  EXPECT_EQ(report.responses, 2);
  EXPECT_EQ(report.rounds, 4);
  EXPECT_EQ(report.tokens, 7);
}

TEST(Acceptance, LeavesResponsesWithoutRoundsOutOfTheMean) {
  const auto report = report_acceptance({repeat(1, 4), {}, repeat(3, 1)}, 4);
  EXPECT_EQ(report.responses, 3);
  EXPECT_DOUBLE_EQ(report.mean_per_response, 2.5);
  EXPECT_DOUBLE_EQ(report.pooled, 7.0 / 4);
}

TEST(Acceptance, IsZeroWithoutAnyRound) {
  const auto report = report_acceptance({{}, {}}, 4);
  EXPECT_EQ(report.responses, 2);
  EXPECT_EQ(report.rounds, 0);
  EXPECT_EQ(report.pooled, 0);
  EXPECT_EQ(report.by_slot, (std::vector<double>{0, 0, 0}));
}

TEST(Acceptance, HasAnIntervalAroundTheValueThatIsReproducible) {
  std::vector<std::vector<Round>> responses;
  for (uint64_t i = 0; i < 40; ++i)
    responses.push_back(repeat(
        1 + static_cast<int64_t>(hash_key({i, 1}) % 5),
        1 + static_cast<int64_t>(hash_key({i, 2}) % 4)));
  const auto report = report_acceptance(responses, 4);
  EXPECT_LT(report.pooled_95.low, report.pooled);
  EXPECT_GT(report.pooled_95.high, report.pooled);
  EXPECT_GE(report.pooled_95.low, 1);
  EXPECT_LE(report.pooled_95.high, 4);
  const auto again = report_acceptance(responses, 4);
  EXPECT_EQ(again.pooled_95.low, report.pooled_95.low);
  EXPECT_EQ(again.pooled_95.high, report.pooled_95.high);
}

TEST(Acceptance, HasAnIntervalOfNoWidthWhenAllResponsesAreAlike) {
  const auto report = report_acceptance({repeat(2, 3), repeat(5, 3)}, 4);
  EXPECT_EQ(report.pooled_95.low, 3);
  EXPECT_EQ(report.pooled_95.high, 3);
}

TEST(Acceptance, ComparesTwoSidesPromptByPrompt) {
  // Prompts differ by up to 3 tokens a round, the two sides by half a token on each.
  std::vector<std::vector<Round>> left;
  std::vector<std::vector<Round>> right;
  for (int64_t i = 0; i < 30; ++i) {
    const int64_t tokens = 1 + i % 3;
    left.push_back(repeat(10, tokens));
    right.push_back(repeat(5, tokens));
    for (const Round& round : repeat(5, tokens + 1))
      right.back().push_back(round);
  }
  const auto difference = compare_acceptance(left, right);
  EXPECT_DOUBLE_EQ(difference.value, 0.5);
  EXPECT_NEAR(difference.interval_95.low, 0.5, 1e-12);
  EXPECT_NEAR(difference.interval_95.high, 0.5, 1e-12);
  EXPECT_GT(
      report_acceptance(left, 4).pooled_95.high - report_acceptance(left, 4).pooled_95.low, 0.3);
  EXPECT_DOUBLE_EQ(compare_acceptance(right, left).value, -0.5);
  EXPECT_EQ(compare_acceptance({{}}, {{}}).value, 0);
}

}  // namespace
}  // namespace draftsmith::eval
