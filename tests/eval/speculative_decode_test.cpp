// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/eval/speculative_decode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "draftsmith/model/drafter_init.h"
#include "draftsmith/train/optimizer.h"

#include "tests/eval/decode_cases.h"
#include "tests/eval/markov_models.h"
#include "tests/train/tiny_batches.h"

namespace draftsmith::eval {
namespace {

using testing::decode_chain;
using testing::decode_drafter;
using testing::decode_target;
using testing::plain_answer;
using testing::read_decode_cases;
using testing::round_lengths;
using Ids = std::vector<int64_t>;

TEST(SpeculativeDecode, EqualsTheReferenceLoop) {
  for (const auto& item : read_decode_cases()) {
    const auto answer = decode_chain(
        decode_target(), decode_drafter(), item.prompt, {40, {}}, /*runs_raw_rounds=*/true);
    EXPECT_EQ(answer.tokens, item.answer);
    EXPECT_EQ(round_lengths(answer), item.acceptance_lengths);
  }
}

TEST(SpeculativeDecode, RunsNoRoundThatAddsNothing) {
  for (const auto& item : read_decode_cases()) {
    const auto answer = decode_chain(decode_target(), decode_drafter(), item.prompt, {40, {}});
    EXPECT_EQ(answer.tokens, item.answer);
    // The fixture's last round commits the one token that is cut away.
    EXPECT_EQ(
        round_lengths(answer),
        Ids(item.acceptance_lengths.begin(), item.acceptance_lengths.end() - 1));
  }
}

TEST(SpeculativeDecode, LosesNothingWithARandomDrafter) {
  const std::pair<const char*, uint64_t> cases[] = {
      {"targets/qwen3-tiny", 20}, {"targets/llama-tiny", 4}, {"decode/target", 4}};
  for (const auto& [name, count] : cases) {
    const auto target = testing::load_target(name);
    auto settings = testing::tiny_drafter_settings();
    settings.mask_token_id = 20;
    const auto drafter = model::make_drafter(settings, {}, target, {}, 3);
    for (uint64_t seed = 0; seed < count; ++seed) {
      const auto prompt =
          testing::make_ids(1 + static_cast<int64_t>(seed), target.config().vocab_size, seed);
      EXPECT_EQ(
          decode_chain(target, drafter, prompt, {40, {}}).tokens,
          plain_answer(target, prompt, {40, {}}))
          << name << " " << seed;
    }
  }
}

TEST(SpeculativeDecode, AcceptsWholeBlocksOfADrafterThatIsAlwaysRight) {
  const testing::MarkovModels models([](int64_t) { return 5; });
  const auto answer = decode_chain(models.target, models.drafter, {1, 2, 3}, {41, {}});
  EXPECT_EQ(answer.tokens, Ids(41, 5));
  EXPECT_EQ(round_lengths(answer), Ids(10, 4));
}

TEST(SpeculativeDecode, AcceptsOneDraftOfADrafterThatIsRightOnce) {
  // 5 and 6 take turns and every draft is 5: from 6 the first draft is right, the second wrong.
  const testing::MarkovModels models([](int64_t x) { return x == 5 ? 6 : 5; });
  const auto answer = decode_chain(models.target, models.drafter, {1, 5}, {41, {}});
  EXPECT_EQ(answer.tokens, plain_answer(models.target, {1, 5}, {41, {}}));
  EXPECT_EQ(answer.tokens.front(), 6);
  EXPECT_EQ(round_lengths(answer), Ids(20, 2));
}

TEST(SpeculativeDecode, AcceptsNothingOfADrafterThatIsAlwaysWrong) {
  const testing::MarkovModels models([](int64_t x) { return x == 22 ? 7 : 5; });
  const auto answer = decode_chain(models.target, models.drafter, {1}, {10, {}});
  EXPECT_EQ(answer.tokens, Ids(10, 5));
  EXPECT_EQ(round_lengths(answer), Ids(9, 1));
}

TEST(SpeculativeDecode, CutsAcceptedTokensAtTheLimit) {
  const testing::MarkovModels models([](int64_t) { return 5; });
  for (const int64_t limit : {1, 2, 3, 4, 5, 6}) {
    const auto answer = decode_chain(models.target, models.drafter, {1}, {limit, {}});
    EXPECT_EQ(answer.tokens, Ids(static_cast<size_t>(limit), 5));
    EXPECT_EQ(answer.rounds.size(), static_cast<size_t>((limit - 1 + 3) / 4)) << limit;
  }
}

constexpr size_t kLearnt = 4;

/// A drafter that has learnt the first answers by heart, and knows no others: rounds of every length
/// over real caches.
model::Drafter train_by_heart(
    const model::Target& target,
    const std::vector<Ids>& prompts,
    const std::vector<Ids>& answers,
    int64_t mask_token_id) {
  std::vector<data::TokenSequence> sequences;
  for (size_t i = 0; i < kLearnt; ++i) {
    data::TokenSequence sequence{prompts[i], {}};
    sequence.ids.insert(sequence.ids.end(), answers[i].begin(), answers[i].end());
    sequence.mask.assign(sequence.ids.size(), 1);
    sequences.push_back(sequence);
  }
  auto settings = testing::tiny_drafter_settings();
  settings.mask_token_id = mask_token_id;
  auto drafter = model::make_drafter(settings, {}, target, {}, 1);
  const auto batch = testing::make_batch(target, drafter, sequences, 0);
  train::AdamW optimizer(drafter.parameters(), {});
  for (int i = 0; i < 16; ++i) {
    const auto step =
        train::run_micro_step(drafter, target.lm_head(), batch, testing::make_loss(0, 0, 0));
    optimizer.accumulate(step.gradients);
    const double scale = 1 / step.sums.weight_sum;
    optimizer.step(3e-3, scale, optimizer.gradient_norm(scale));
  }
  return drafter;
}

TEST(SpeculativeDecode, LosesNothingAtAnyAcceptedLength) {
  const std::pair<const char*, int64_t> cases[] = {
      {"decode/target", 22},
      {"targets/llama-tiny", 205},
      {"targets/qwen3-tiny", 205},
      {"targets/qwen3_5-tiny", 205}};
  for (const auto& [name, mask_token_id] : cases) {
    const auto target = testing::load_target(name);
    std::vector<Ids> prompts;
    std::vector<Ids> plain;
    for (uint64_t seed = 0; seed < 2 * kLearnt; ++seed) {
      prompts.push_back(
          testing::make_ids(4 + static_cast<int64_t>(seed), target.config().vocab_size, seed));
      plain.push_back(plain_answer(target, prompts.back(), {40, {}}));
    }
    const auto drafter = train_by_heart(target, prompts, plain, mask_token_id);
    for (const auto shape : {DraftShape::kChain, DraftShape::kTree}) {
      std::set<int64_t> lengths;
      for (size_t i = 0; i < prompts.size(); ++i) {
        const auto answer = testing::decode_one(
            target, drafter, prompts[i], {40, {}}, {.shape = shape, .tree_budget = 6});
        EXPECT_EQ(answer.tokens, plain[i]) << name << " " << i;
        for (const int64_t length : round_lengths(answer))
          lengths.insert(length);
      }
      EXPECT_EQ(lengths, (std::set<int64_t>{1, 2, 3, 4})) << name;
    }
  }
}

TEST(SpeculativeDecode, EndsWithAStopIdWhereverItStands) {
  auto cases = read_decode_cases();
  cases.resize(2);
  for (const auto& item : cases) {
    for (const int64_t stop : std::set<int64_t>(item.greedy.begin(), item.greedy.end())) {
      const DecodeLimits limits{40, {stop}};
      const auto answer = decode_chain(decode_target(), decode_drafter(), item.prompt, limits);
      EXPECT_EQ(answer.tokens, plain_answer(decode_target(), item.prompt, limits));
      EXPECT_EQ(answer.tokens.back(), stop);
      EXPECT_EQ(std::count(answer.tokens.begin(), answer.tokens.end(), stop), 1);
    }
  }
}

TEST(SpeculativeDecode, RunsNoRoundWhenThePromptIsAnsweredByAStopId) {
  const auto item = read_decode_cases().front();
  for (const bool runs_raw_rounds : {false, true}) {
    const auto answer = decode_chain(
        decode_target(), decode_drafter(), item.prompt, {40, {item.greedy[0]}}, runs_raw_rounds);
    EXPECT_EQ(answer.tokens, Ids{item.greedy[0]});
    EXPECT_TRUE(answer.rounds.empty());
  }
}

TEST(SpeculativeDecode, CutsTheAnswerAtAStopIdAmongAcceptedDrafts) {
  // 5 follows everything and is accepted in blocks; the stop id is the second token of a round.
  const testing::MarkovModels models([](int64_t) { return 5; });
  const auto answer = decode_chain(models.target, models.drafter, {1}, {40, {5}});
  EXPECT_EQ(answer.tokens, Ids{5});
  const auto late = decode_chain(models.target, models.drafter, {5}, {3, {}});
  EXPECT_EQ(late.tokens, Ids(3, 5));
  EXPECT_EQ(round_lengths(late), Ids{4});  // rounds are never cut
}

TEST(SpeculativeDecode, RunsOneRawRoundForALimitOfOne) {
  const auto item = read_decode_cases().front();
  const auto raw = decode_chain(decode_target(), decode_drafter(), item.prompt, {1, {}}, true);
  EXPECT_EQ(raw.tokens, Ids{item.greedy[0]});
  EXPECT_EQ(raw.rounds.size(), 1U);
  EXPECT_TRUE(decode_chain(decode_target(), decode_drafter(), item.prompt, {1, {}}).rounds.empty());
  const auto two = decode_chain(decode_target(), decode_drafter(), item.prompt, {2, {}});
  EXPECT_EQ(two.tokens, Ids(item.greedy.begin(), item.greedy.begin() + 2));
  EXPECT_EQ(two.rounds.size(), 1U);
}

TEST(SpeculativeDecode, LosesNothingWithSlidingLayers) {
  const auto target = testing::load_target("targets/qwen3-tiny");
  const auto drafter = model::Drafter::load(testing::fixture("drafter/sliding"), torch::kFloat);
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const auto prompt = testing::make_ids(9, 211, seed);
    EXPECT_EQ(
        decode_chain(target, drafter, prompt, {30, {}}).tokens,
        plain_answer(target, prompt, {30, {}}));
  }
}

}  // namespace
}  // namespace draftsmith::eval
