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

EvalReport evaluate_chain(
    const model::Target& target,
    const model::Drafter& drafter,
    const std::vector<data::Prompt>& prompts,
    const DecodeLimits& limits,
    const EvalOptions& options = {}) {
  DrafterSource source(target, drafter, {});
  return evaluate(target, {&source}, prompts, limits, options).front();
}

std::vector<data::Prompt> read_prompts() {
  std::vector<data::Prompt> prompts;
  for (const auto& item : read_decode_cases())
    prompts.push_back({item.prompt, prompts.size() < 2 ? "one" : "two"});
  return prompts;
}

TEST(Evaluate, FindsNoDifferencesInFloat32) {
  std::vector<data::Prompt> prompts;
  int64_t rounds = 0;
  for (const auto& item : read_decode_cases()) {
    prompts.push_back({item.prompt, prompts.size() < 2 ? "one" : "two"});
    rounds += static_cast<int64_t>(item.acceptance_lengths.size()) - 1;  // raw rounds but the last
  }
  const auto report = evaluate_chain(decode_target(), decode_drafter(), prompts, {40, {}});
  EXPECT_TRUE(report.is_compared);
  EXPECT_TRUE(report.differences.empty());
  EXPECT_EQ(report.total.tokens, 240);
  EXPECT_EQ(report.total.acceptance.tokens, 6 * 39);
  EXPECT_EQ(report.total.acceptance.rounds, rounds);
  EXPECT_EQ(report.total.acceptance.responses, 6);
  EXPECT_EQ(report.by_set.at("one").acceptance.responses, 2);
  EXPECT_EQ(report.by_set.at("two").acceptance.responses, 4);
  EXPECT_EQ(
      report.by_set.at("one").acceptance.rounds + report.by_set.at("two").acceptance.rounds,
      rounds);
  EXPECT_GT(report.total.plain_tokens_per_s(), 0);
  EXPECT_GT(report.total.speculative_tokens_per_s(), 0);
}

TEST(Evaluate, NamesNoSetsWhenAllPromptsShareOne) {
  const auto report =
      evaluate_chain(decode_target(), decode_drafter(), {{{1, 3}, "a"}, {{4}, "a"}}, {5, {}});
  EXPECT_TRUE(report.by_set.empty());
  EXPECT_EQ(report.total.acceptance.responses, 2);
}

TEST(Evaluate, ReportsTheAcceptanceOfADrafterThatIsAlwaysRight) {
  const testing::MarkovModels models([](int64_t) { return 5; });
  const auto report =
      evaluate_chain(models.target, models.drafter, {{{1}, ""}, {{2, 3}, ""}}, {41, {}});
  EXPECT_EQ(report.total.acceptance.pooled, 4);
  EXPECT_EQ(report.total.acceptance.by_slot, (std::vector<double>{1, 1, 1}));
  EXPECT_EQ(report.total.acceptance.histogram, (std::vector<int64_t>{0, 0, 0, 0, 20}));
}

TEST(Evaluate, CutsTheLastRoundAtTheLimit) {
  const testing::MarkovModels models([](int64_t) { return 5; });
  const auto report = evaluate_chain(models.target, models.drafter, {{{1}, ""}}, {7, {}});
  EXPECT_EQ(report.total.acceptance.tokens, 6);  // 4 and 2 after the prefill token
  EXPECT_EQ(report.total.acceptance.rounds, 2);
  EXPECT_EQ(report.total.tokens, 7);
}

TEST(Evaluate, CountsAPromptAnsweredByAStopIdAsAResponseWithoutRounds) {
  const testing::MarkovModels models([](int64_t) { return 5; });
  const auto report = evaluate_chain(models.target, models.drafter, {{{1}, ""}}, {7, {5}});
  EXPECT_EQ(report.total.acceptance.responses, 1);
  EXPECT_EQ(report.total.acceptance.rounds, 0);
  EXPECT_EQ(report.total.acceptance.pooled, 0);
  EXPECT_EQ(report.total.tokens, 1);
}

TEST(Evaluate, GivesTheSameCountsInBatchesAsAlone) {
  const auto prompts = read_prompts();
  const auto alone = evaluate_chain(decode_target(), decode_drafter(), prompts, {40, {8, 15}});
  const auto batched =
      evaluate_chain(decode_target(), decode_drafter(), prompts, {40, {8, 15}}, {.batch = 3});
  EXPECT_TRUE(batched.differences.empty());
  EXPECT_EQ(batched.total.tokens, alone.total.tokens);
  EXPECT_EQ(batched.total.acceptance.rounds, alone.total.acceptance.rounds);
  EXPECT_EQ(batched.total.acceptance.histogram, alone.total.acceptance.histogram);
  EXPECT_EQ(batched.by_set.at("two").acceptance.rounds, alone.by_set.at("two").acceptance.rounds);
}

TEST(Evaluate, MeasuresSeveralSourcesOnTheSamePrompts) {
  DrafterSource chain(decode_target(), decode_drafter(), {});
  DrafterSource tree(
      decode_target(), decode_drafter(), {.shape = DraftShape::kTree, .tree_budget = 23});
  const auto prompts = read_prompts();
  const auto reports = evaluate(decode_target(), {&chain, &tree}, prompts, {40, {}});
  ASSERT_EQ(reports.size(), 2U);
  EXPECT_TRUE(reports[0].differences.empty());
  EXPECT_TRUE(reports[1].differences.empty());
  EXPECT_EQ(reports[0].total.plain_seconds, reports[1].total.plain_seconds);
  EXPECT_GT(reports[1].total.acceptance.pooled, reports[0].total.acceptance.pooled);
  const auto difference = compare_acceptance(reports[0].rounds, reports[1].rounds);
  EXPECT_DOUBLE_EQ(
      difference.value, reports[1].total.acceptance.pooled - reports[0].total.acceptance.pooled);
  EXPECT_GT(difference.interval_95.low, 0);
}

TEST(Evaluate, SplitsTheTimeOfTheFastestRepeat) {
  const auto report =
      evaluate_chain(decode_target(), decode_drafter(), read_prompts(), {40, {}}, {.repeats = 2});
  const auto& times = report.total.times;
  for (const double seconds : {times.prefill, times.draft, times.tree, times.verify, times.commit})
    EXPECT_GT(seconds, 0);
  EXPECT_LE(times.total(), report.total.speculative_seconds);
  EXPECT_GE(times.total(), 0.5 * report.total.speculative_seconds);
  EXPECT_EQ(report.total.tokens, 240);  // repeats are not counted twice
}

TEST(Evaluate, TakesSpeedsFromEachSidesOwnTokens) {
  SetReport set;
  set.tokens = 60;
  set.speculative_seconds = 2;
  set.plain_tokens = 30;
  set.plain_seconds = 3;
  EXPECT_DOUBLE_EQ(set.plain_tokens_per_s(), 10);
  EXPECT_DOUBLE_EQ(set.speculative_tokens_per_s(), 30);
  EXPECT_DOUBLE_EQ(set.speedup(), 3);

  // Drawn drafts and stop ids: the answers differ in length.
  const TokenPicker picker(1, 5);
  const DecodeLimits limits{40, {8, 15}};
  const auto prompts = read_prompts();
  DrafterSource source(
      decode_target(), decode_drafter(), {.samples_drafts = true, .picker = picker});
  const auto report = evaluate(
                          decode_target(), {&source}, prompts, limits,
                          {.picker = picker, .expects_identity = false})
                          .front();
  int64_t plain_tokens = 0;
  for (size_t i = 0; i < prompts.size(); ++i)
    plain_tokens += std::ssize(
        decode_plainly(decode_target(), {prompts[i].ids}, limits, picker, static_cast<int64_t>(i))
            .front());
  EXPECT_EQ(report.total.plain_tokens, plain_tokens);
  EXPECT_NE(report.total.tokens, plain_tokens);
  EXPECT_EQ(
      report.by_set.at("one").plain_tokens + report.by_set.at("two").plain_tokens, plain_tokens);
  EXPECT_FALSE(report.is_compared);
}

TEST(Evaluate, RunsNothingPlainlyUnlessAsked) {
  const auto report = evaluate_chain(
      decode_target(), decode_drafter(), read_prompts(), {40, {}}, {.runs_plainly = false});
  EXPECT_EQ(report.total.plain_seconds, 0);
  EXPECT_EQ(report.total.speedup(), 0);
  EXPECT_FALSE(report.is_compared);
  EXPECT_EQ(report.total.plain_tokens, 0);
  EXPECT_EQ(report.total.acceptance.tokens, 6 * 39);
}

}  // namespace
}  // namespace draftsmith::eval
