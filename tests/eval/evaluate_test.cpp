// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/eval/evaluate.h"

#include <gtest/gtest.h>

#include "tests/eval/decode_cases.h"
#include "tests/eval/markov_models.h"

namespace draftsmith::eval {
namespace {

using testing::decode_drafter;
using testing::decode_target;
using testing::read_decode_cases;

TEST(Evaluate, FindsNoDifferencesInFloat32) {
  std::vector<data::Prompt> prompts;
  int64_t rounds = 0;
  for (const auto& item : read_decode_cases()) {
    prompts.push_back({item.prompt, prompts.size() < 2 ? "one" : "two"});
    rounds += static_cast<int64_t>(item.acceptance_lengths.size()) - 1;  // raw rounds but the last
  }
  const auto report = evaluate_chain(decode_target(), decode_drafter(), prompts, {40, {}});
  EXPECT_TRUE(report.differences.empty());
  EXPECT_EQ(report.tokens, 240);
  EXPECT_EQ(report.total.tokens, 6 * 39);
  EXPECT_EQ(report.total.rounds, rounds);
  EXPECT_EQ(report.total.responses, 6);
  EXPECT_EQ(report.by_set.at("one").responses, 2);
  EXPECT_EQ(report.by_set.at("two").responses, 4);
  EXPECT_EQ(report.by_set.at("one").rounds + report.by_set.at("two").rounds, rounds);
  EXPECT_GT(report.plain_tokens_per_s, 0);
  EXPECT_GT(report.speculative_tokens_per_s, 0);
}

TEST(Evaluate, NamesNoSetsWhenAllPromptsShareOne) {
  const auto report =
      evaluate_chain(decode_target(), decode_drafter(), {{{1, 3}, "a"}, {{4}, "a"}}, {5, {}});
  EXPECT_TRUE(report.by_set.empty());
  EXPECT_EQ(report.total.responses, 2);
}

TEST(Evaluate, ReportsTheAcceptanceOfADrafterThatIsAlwaysRight) {
  const testing::MarkovModels models([](int64_t) { return 5; });
  const auto report =
      evaluate_chain(models.target, models.drafter, {{{1}, ""}, {{2, 3}, ""}}, {41, {}});
  EXPECT_EQ(report.total.pooled, 4);
  EXPECT_EQ(report.total.by_slot, (std::vector<double>{1, 1, 1}));
  EXPECT_EQ(report.total.histogram, (std::vector<int64_t>{0, 0, 0, 0, 20}));
}

TEST(Evaluate, CutsTheLastRoundAtTheLimit) {
  const testing::MarkovModels models([](int64_t) { return 5; });
  const auto report = evaluate_chain(models.target, models.drafter, {{{1}, ""}}, {7, {}});
  EXPECT_EQ(report.total.tokens, 6);  // 4 and 2 after the prefill token
  EXPECT_EQ(report.total.rounds, 2);
  EXPECT_EQ(report.tokens, 7);
}

TEST(Evaluate, CountsAPromptAnsweredByAStopIdAsAResponseWithoutRounds) {
  const testing::MarkovModels models([](int64_t) { return 5; });
  const auto report = evaluate_chain(models.target, models.drafter, {{{1}, ""}}, {7, {5}});
  EXPECT_EQ(report.total.responses, 1);
  EXPECT_EQ(report.total.rounds, 0);
  EXPECT_EQ(report.total.pooled, 0);
  EXPECT_EQ(report.tokens, 1);
}

}  // namespace
}  // namespace draftsmith::eval
