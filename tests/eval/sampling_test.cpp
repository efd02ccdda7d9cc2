// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>

#include "draftsmith/eval/accept_drafts.h"
#include "draftsmith/eval/token_picker.h"
#include "draftsmith/model/drafter_init.h"

#include "tests/eval/decode_cases.h"
#include "tests/eval/markov_models.h"
#include "tests/support/reference.h"

namespace draftsmith::eval {
namespace {

using Ids = std::vector<int64_t>;
using Distribution = std::vector<double>;

constexpr int64_t kDraws = 20000;

/// Chi-square of counts against what `expected` makes of their sum, in standard deviations above
/// its mean: chi-square has mean df and variance 2 df. Below 5 in all but 1 of a million cases.
double deviation(const Ids& counts, const Distribution& expected) {
  double sum = 0;
  for (const int64_t count : counts)
    sum += static_cast<double>(count);
  double chi_square = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double mean = sum * expected[i];
    chi_square += std::pow(static_cast<double>(counts[i]) - mean, 2) / mean;
  }
  const double df = static_cast<double>(counts.size()) - 1;
  return (chi_square - df) / std::sqrt(2 * df);
}

TEST(TokenPicker, TakesTheLowestIdOnTies) {
  const auto logits = torch::tensor({1.0F, 3.0F, 3.0F, 0.0F, 0.0F, 0.0F}).view({2, 3});
  EXPECT_EQ(pick_greedy(logits), (Ids{1, 0}));
  EXPECT_EQ(TokenPicker().pick(logits[0], 0, 0), 1);
  EXPECT_TRUE(TokenPicker(9e-6, 1).is_greedy());
  EXPECT_FALSE(TokenPicker(1e-5, 1).is_greedy());
}

TEST(TokenPicker, DrawsFromTheSoftmaxAtItsTemperature) {
  const auto logits = torch::tensor({0.5F, -1.0F, 2.0F, 0.0F, 1.5F});
  for (const double temperature : {0.5, 1.0, 2.0}) {
    const TokenPicker picker(temperature, 7);
    Ids counts(5, 0);
    for (int64_t i = 0; i < kDraws; ++i)
      ++counts[static_cast<size_t>(picker.pick(logits, i / 100, i % 100))];
    const auto expected = (logits.to(torch::kDouble) / temperature).softmax(0);
    const auto probabilities = softmax_at(logits, temperature);
    for (int64_t v = 0; v < 5; ++v)
      EXPECT_NEAR(probabilities[static_cast<size_t>(v)], expected[v].item<double>(), 1e-12);
    EXPECT_LT(deviation(counts, probabilities), 5) << temperature;
  }
}

TEST(TokenPicker, DrawsAgainOnlyWhereAskedForAnother) {
  const TokenPicker picker(1, 3);
  std::set<double> draws;
  for (const auto kind : {Draw::kTarget, Draw::kDraft, Draw::kTest, Draw::kResidual})
    for (int64_t response = 0; response < 5; ++response)
      for (int64_t place = 0; place < 5; ++place)
        draws.insert(picker.uniform(kind, response, place));
  EXPECT_EQ(draws.size(), 100U);
  EXPECT_EQ(picker.uniform(Draw::kTest, 2, 3), TokenPicker(1, 3).uniform(Draw::kTest, 2, 3));
  EXPECT_NE(picker.uniform(Draw::kTest, 2, 3), TokenPicker(1, 4).uniform(Draw::kTest, 2, 3));
}

TEST(DrawIndex, SkipsWhatHasNoWeight) {
  const Distribution weights = {0, 0.25, 0, 0.75, 0};
  EXPECT_EQ(draw_index(weights, 1e-12), 1);
  EXPECT_EQ(draw_index(weights, 0.2499), 1);
  EXPECT_EQ(draw_index(weights, 0.2501), 3);
  EXPECT_EQ(draw_index(weights, 1 - 1e-16), 3);
}

/// Rows of 4 probabilities.
std::vector<Distribution> random_rows(int64_t count, uint64_t seed) {
  const auto rows = (testing::random_normal({count, 4}, seed) * 1.5).softmax(-1);
  std::vector<Distribution> result;
  for (int64_t i = 0; i < count; ++i)
    result.emplace_back(rows[i].data_ptr<double>(), rows[i].data_ptr<double>() + 4);
  return result;
}

TEST(AcceptDrawn, LeavesTheDistributionOfTheTarget) {
  // A target whose next token depends on the last one; drafts are drawn from unrelated rows.
  const auto target_rows = random_rows(4, 1);
  const auto draft_rows = random_rows(3, 2);
  const TokenPicker picker(1, 5);
  const int64_t first = 2;
  Ids pairs(16, 0);
  int64_t accepted = 0;
  for (int64_t response = 0; response < kDraws; ++response) {
    Ids answer = {first};
    while (answer.size() < 3) {
      const Anchor anchor{answer.back(), response, static_cast<int64_t>(answer.size()) - 1};
      Proposal proposal{{}, draft_rows};
      Ids drafts;
      for (int64_t k = 0; k < 3; ++k)
        drafts.push_back(draw_index(
            draft_rows[static_cast<size_t>(k)],
            picker.uniform(Draw::kDraft, response, anchor.place + 1 + k)));
      proposal.tree = make_line_tree(drafts);
      const auto result = accept_drawn(
          proposal,
          [&](int64_t node) {
            const int64_t last = node == 0 ? anchor.token : drafts[static_cast<size_t>(node - 1)];
            return target_rows[static_cast<size_t>(last)];
          },
          picker, anchor);
      accepted += result.num_accepted();
      for (int64_t k = 0; k < result.num_accepted(); ++k)
        answer.push_back(drafts[static_cast<size_t>(k)]);
      answer.push_back(result.token);
    }
    ++pairs[static_cast<size_t>(4 * answer[1] + answer[2])];
  }
  Distribution expected;
  for (size_t a = 0; a < 4; ++a)
    for (size_t b = 0; b < 4; ++b)
      expected.push_back(target_rows[first][a] * target_rows[a][b]);
  EXPECT_LT(deviation(pairs, expected), 5);
  EXPECT_GT(accepted, kDraws / 4);
}

TEST(AcceptDrawn, AcceptsAsOftenAsTheDistributionsOverlap) {
  const auto p = random_rows(1, 3).front();
  const auto q = random_rows(1, 4).front();
  double overlap = 0;
  for (size_t v = 0; v < 4; ++v)
    overlap += std::min(p[v], q[v]);
  const TokenPicker picker(1, 6);
  int64_t accepted = 0;
  for (int64_t response = 0; response < kDraws; ++response) {
    const int64_t draft = draw_index(q, picker.uniform(Draw::kDraft, response, 1));
    accepted +=
        accept_drawn(
            {make_line_tree({draft}), {q}}, [&](int64_t) { return p; }, picker, {0, response, 0})
            .num_accepted();
  }
  EXPECT_LT(deviation({accepted, kDraws - accepted}, {overlap, 1 - overlap}), 5);
}

TEST(AcceptDrawn, AcceptsEveryDraftOfTheTargetItself) {
  const auto p = random_rows(1, 3).front();
  const TokenPicker picker(1, 6);
  for (int64_t response = 0; response < 200; ++response) {
    const int64_t draft = draw_index(p, picker.uniform(Draw::kDraft, response, 1));
    EXPECT_EQ(
        accept_drawn(
            {make_line_tree({draft}), {p}}, [&](int64_t) { return p; }, picker, {0, response, 0})
            .num_accepted(),
        1);
  }
}

/// Draws of every way of decoding: after x the target's logit of (x + 1) mod 22 is 8, all others 0,
/// so each step's distance from it has one known distribution.
void expect_distribution_of_the_target(int64_t num_draws) {
  const testing::MarkovModels models([](int64_t x) { return (x + 1) % 22; });
  const double temperature = 3;
  const TokenPicker picker(temperature, 11);
  const DecodeLimits limits{41, {}};
  const int64_t batch = 50;
  Distribution expected(23, 1 / (std::exp(8 / temperature) + 22));
  expected[0] = 1 - 22 * expected[1];

  const auto measure = [&](const std::function<std::vector<Ids>(int64_t)>& answer) {
    Ids counts(23, 0);
    for (int64_t first = 0; first < num_draws / 40; first += batch) {
      for (const Ids& tokens : answer(first)) {
        for (size_t i = 1; i < tokens.size(); ++i) {
          const int64_t next = (tokens[i - 1] + 1) % 22;
          ++counts[static_cast<size_t>((tokens[i] - next + 23) % 23)];
        }
      }
    }
    return deviation(counts, expected);
  };
  const std::vector<Ids> prompts(static_cast<size_t>(batch), Ids{4});
  EXPECT_LT(
      measure([&](int64_t first) {
        return decode_plainly(models.target, prompts, limits, picker, first);
      }),
      5);
  const DraftOptions ways[] = {
      {.picker = picker},
      {.samples_drafts = true, .picker = picker},
      {.shape = DraftShape::kTree, .tree_budget = 9, .picker = picker}};
  for (const DraftOptions& way : ways) {
    DrafterSource source(models.target, models.drafter, way);
    EXPECT_LT(
        measure([&](int64_t first) {
          std::vector<Ids> answers;
          for (auto& answer : decode_speculatively(
                                  models.target, source, prompts, limits,
                                  {.picker = picker, .first_response = first})
                                  .answers)
            answers.push_back(answer.tokens);
          return answers;
        }),
        5);
  }
}

TEST(SampledDecode, LeavesTheDistributionOfTheTarget) { expect_distribution_of_the_target(2000); }

TEST(SlowSampledDecode, LeavesTheDistributionOfTheTarget) {
  expect_distribution_of_the_target(kDraws);
}

TEST(SampledDecode, DrawsTheSameAnswersPlainlyAndSpeculatively) {
  const auto target = testing::load_target("targets/qwen3-tiny");
  const auto drafter = model::make_drafter(testing::tiny_drafter_settings(), {}, target, {}, 3);
  const TokenPicker picker(0.8, 2);
  std::vector<Ids> prompts;
  for (uint64_t seed = 0; seed < 4; ++seed)
    prompts.push_back(testing::make_ids(3 + 4 * static_cast<int64_t>(seed), 211, seed));
  const auto plain = decode_plainly(target, prompts, {40, {}}, picker, 10);
  EXPECT_NE(plain, decode_plainly(target, prompts, {40, {}}, TokenPicker(0.8, 3), 10));
  for (const auto shape : {DraftShape::kChain, DraftShape::kTree}) {
    DrafterSource source(target, drafter, {.shape = shape, .tree_budget = 6, .picker = picker});
    const auto result = decode_speculatively(
        target, source, prompts, {40, {}}, {.picker = picker, .first_response = 10});
    for (size_t i = 0; i < prompts.size(); ++i)
      EXPECT_EQ(result.answers[i].tokens, plain[i]) << i;
  }
}

}  // namespace
}  // namespace draftsmith::eval
