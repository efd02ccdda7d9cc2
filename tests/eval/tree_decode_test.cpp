// SPDX-License-Identifier: Apache-2.0
// F17 and F05: trees with wrong ancestors, positions or lookups, and states that are not rewound.
#include <gtest/gtest.h>

#include <set>

#include "draftsmith/eval/acceptance.h"
#include "draftsmith/model/drafter_init.h"

#include "tests/eval/decode_cases.h"
#include "tests/eval/markov_models.h"
#include "tests/eval/scripted_source.h"

namespace draftsmith::eval {
namespace {

using testing::decode_chain;
using testing::decode_drafter;
using testing::decode_one;
using testing::decode_target;
using testing::decode_tree;
using testing::plain_answer;
using testing::read_decode_cases;
using testing::round_lengths;
using testing::ScriptedSource;
using Ids = std::vector<int64_t>;

constexpr int64_t kTokens = 64;

struct TargetCase {
  const char* name;
  int64_t mask_token_id;
};
constexpr TargetCase kLlama = {"targets/llama-tiny", 205};
constexpr TargetCase kQwen3 = {"targets/qwen3-tiny", 205};
constexpr TargetCase kHybrid = {"targets/qwen3_5-tiny", 205};
constexpr TargetCase kTargets[] = {kLlama, kQwen3, kHybrid, {"decode/target", 22}};

model::Drafter
make_random_drafter(const model::Target& target, int64_t mask_token_id, int64_t block_size = 4) {
  auto settings = testing::tiny_drafter_settings();
  settings.mask_token_id = mask_token_id;
  settings.block_size = block_size;
  return model::make_drafter(settings, {}, target, {}, 3);
}

/// Chain and trees against plain greedy decoding on random prompts of different lengths.
void expect_lossless(const TargetCase& tested, uint64_t num_prompts, const Ids& budgets) {
  const auto target = testing::load_target(tested.name);
  const auto drafter = make_random_drafter(target, tested.mask_token_id);
  for (uint64_t seed = 0; seed < num_prompts; ++seed) {
    const auto prompt =
        testing::make_ids(1 + static_cast<int64_t>(seed % 23), target.config().vocab_size, seed);
    const auto plain = plain_answer(target, prompt, {kTokens, {}});
    EXPECT_EQ(decode_chain(target, drafter, prompt, {kTokens, {}}).tokens, plain)
        << tested.name << " " << seed;
    for (const int64_t budget : budgets)
      EXPECT_EQ(decode_tree(target, drafter, prompt, {kTokens, {}}, budget).tokens, plain)
          << tested.name << " " << seed << " " << budget;
  }
}

TEST(TreeDecode, LosesNothingAtAnyBudget) {
  for (const TargetCase& tested : kTargets)
    expect_lossless(tested, 4, {1, 3, 5, 60});  // the hybrid's fourth answer comes near to a tie
}

void expect_lossless_over_two_hundred_prompts(const TargetCase& tested) {
  expect_lossless(tested, 200, {1, 5, 32, 60});
}

TEST(SlowTreeDecode, LosesNothingWithLlama) { expect_lossless_over_two_hundred_prompts(kLlama); }
TEST(SlowTreeDecode, LosesNothingWithQwen3) { expect_lossless_over_two_hundred_prompts(kQwen3); }
TEST(SlowTreeDecode, LosesNothingWithAHybrid) { expect_lossless_over_two_hundred_prompts(kHybrid); }

TEST(TreeDecode, EqualsTheChainWithALineRoundsIncluded) {
  for (const auto& item : read_decode_cases()) {
    const auto chain = decode_chain(decode_target(), decode_drafter(), item.prompt, {40, {}});
    // Every round's drafts, recorded and replayed as a bare tree.
    std::vector<DraftTree> recorded;
    DrafterSource drafts(decode_target(), decode_drafter(), {});
    decode_speculatively(
        decode_target(), drafts, {item.prompt}, {40, {}},
        {.on_round = [&](const RoundTrace& trace) { recorded.push_back(trace.tree); }});
    size_t round = 0;
    ScriptedSource line(3, 3, [&](const Anchor&) {
      return DraftTree{recorded[round].tokens, {1, 2, 3}, recorded[round++].parents};
    });
    const auto answer =
        decode_speculatively(decode_target(), line, {item.prompt}, {40, {}}).answers.front();
    EXPECT_EQ(answer.tokens, chain.tokens);
    EXPECT_EQ(answer.rounds, chain.rounds);
    EXPECT_EQ(round, chain.rounds.size());
  }
}

TEST(TreeDecode, EqualsTheChainWithBlocksOfTwoAndOneNode) {
  const auto drafter = make_random_drafter(decode_target(), 22, 2);
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const auto prompt = testing::make_ids(7, 23, seed);
    const auto chain = decode_chain(decode_target(), drafter, prompt, {kTokens, {}});
    const auto tree = decode_tree(decode_target(), drafter, prompt, {kTokens, {}}, 1);
    EXPECT_EQ(tree.tokens, chain.tokens);
    EXPECT_EQ(tree.rounds, chain.rounds);
  }
}

TEST(TreeDecode, AcceptsTwoTokensARoundWhenAllWordsAreNodes) {
  // Blocks of two over 23 words: whatever the target says is one of the 23 nodes.
  const auto drafter = make_random_drafter(decode_target(), 22, 2);
  const auto prompt = testing::make_ids(9, 23, 8);
  int64_t nodes = 0;
  DrafterSource source(decode_target(), drafter, {.shape = DraftShape::kTree, .tree_budget = 30});
  const auto answer =
      decode_speculatively(
          decode_target(), source, {prompt}, {kTokens, {}},
          {.on_round = [&](const RoundTrace& trace) { nodes = trace.tree.num_nodes(); }})
          .answers.front();
  EXPECT_EQ(nodes, 23);
  auto lengths = round_lengths(answer);
  lengths.pop_back();
  EXPECT_EQ(lengths, Ids(31, 2));
  EXPECT_EQ(answer.tokens, plain_answer(decode_target(), prompt, {kTokens, {}}));
}

TEST(TreeDecode, AcceptsTheBranchThatTheTargetTakes) {
  // 1:A and 2:B on the root, 3:C on 1, 4:C on 2, 5:D on 3. The target says B, C, X after the root 9:
  // nodes 2 and 4, though node 3 holds C too.
  const int64_t A = 1, B = 2, C = 3, D = 4, X = 7;
  const testing::MarkovModels models([=](int64_t x) {
    return x == 8 ? 9 : x == 9 ? B : x == B ? C : X;
  });
  ScriptedSource source(3, 5, [=](const Anchor&) {
    return DraftTree{{A, B, C, C, D}, {1, 1, 2, 2, 3}, {0, 0, 1, 2, 3}};
  });
  std::vector<Acceptance> rounds;
  const auto answer =
      decode_speculatively(
          models.target, source, {{5, 8}}, {4, {}},
          {.on_round = [&](const RoundTrace& trace) { rounds.push_back(trace.accepted); }})
          .answers.front();
  EXPECT_EQ(answer.tokens, (Ids{9, B, C, X}));
  EXPECT_EQ(round_lengths(answer), Ids{3});
  EXPECT_EQ(rounds.front().path, (Ids{0, 2, 4}));
  EXPECT_EQ(rounds.front().token, X);
}

TEST(TreeDecode, NeverAcceptsLessFromALargerTree) {
  const auto& target = decode_target();
  const auto& drafter = decode_drafter();
  for (const auto& item : read_decode_cases()) {
    int64_t before = 0;
    for (const int64_t budget : {0, 1, 2, 3, 5, 8, 13, 30, 60, 200}) {
      const auto answer = decode_tree(target, drafter, item.prompt, {2, {}}, budget);
      const auto accepted = static_cast<int64_t>(answer.rounds.front().size());
      EXPECT_GE(accepted, before) << budget;
      before = accepted;
    }
  }
}

TEST(TreeDecode, AcceptsNoLessThanTheChainOverAll) {
  int64_t chain = 0;
  int64_t tree = 0;
  for (const auto& item : read_decode_cases()) {
    chain += static_cast<int64_t>(
        decode_chain(decode_target(), decode_drafter(), item.prompt, {40, {}}).rounds.size());
    tree += static_cast<int64_t>(
        decode_tree(decode_target(), decode_drafter(), item.prompt, {40, {}}, 32).rounds.size());
  }
  EXPECT_LT(tree, chain);
}

/// F05: an oracle that knows the plain answer and is right in the first `num_right` drafts. As a
/// tree every draft has a wrong sibling before it.
ScriptedSource make_oracle(const Ids& plain, int64_t num_right, bool is_tree) {
  return {3, is_tree ? 6 : 3, [=](const Anchor& anchor) {
            Ids drafts;
            for (int64_t k = 1; k <= 3; ++k) {
              const auto place = static_cast<size_t>(anchor.place + k);
              const int64_t right = place < plain.size() ? plain[place] : 0;
              drafts.push_back(k <= num_right ? right : (right + 1) % 23);
            }
            if (!is_tree) return make_line_tree(drafts);
            DraftTree tree;
            int64_t parent = 0;
            for (int64_t k = 1; k <= 3; ++k) {
              const int64_t draft = drafts[static_cast<size_t>(k - 1)];
              for (const int64_t token : {(draft + 2) % 23, draft}) {
                tree.tokens.push_back(token);
                tree.depths.push_back(k);
                tree.parents.push_back(parent);
              }
              parent = tree.num_nodes();
            }
            return tree;
          }};
}

TEST(TreeDecode, RewindsTheStateAfterEveryAcceptedLength) {
  for (const TargetCase& tested : kTargets) {
    const auto target = testing::load_target(tested.name);
    const auto prompt = testing::make_ids(20, 23, 11);
    const auto plain = plain_answer(target, prompt, {kTokens, {}});
    for (const bool is_tree : {false, true}) {
      for (const int64_t num_right : {0, 1, 2, 3}) {
        auto oracle = make_oracle(plain, num_right, is_tree);
        const auto answer =
            decode_speculatively(target, oracle, {prompt}, {kTokens, {}}).answers.front();
        EXPECT_EQ(answer.tokens, plain) << tested.name << " " << num_right << " " << is_tree;
        auto lengths = round_lengths(answer);
        lengths.pop_back();  // at the end of what the oracle knows
        EXPECT_EQ(lengths, Ids(lengths.size(), num_right + 1)) << tested.name;
      }
    }
  }
}

TEST(TreeDecode, DecodesPromptsOfDifferentLengthsSideBySide) {
  for (const TargetCase& tested : kTargets) {
    const auto target = testing::load_target(tested.name);
    const auto drafter = make_random_drafter(target, tested.mask_token_id);
    const int64_t vocab_size = target.config().vocab_size;
    std::vector<Ids> prompts;
    std::vector<Ids> plain;
    std::set<size_t> lengths;
    for (uint64_t seed = 0; seed < 5; ++seed) {
      prompts.push_back(testing::make_ids(2 + 5 * static_cast<int64_t>(seed), vocab_size, seed));
      plain.push_back(plain_answer(target, prompts.back(), {40, {}}));
    }
    // Tokens of the answers themselves, so that rows leave the batch one after another.
    const DecodeLimits limits{40, {plain[0][9], plain[1][21]}};
    for (size_t i = 0; i < prompts.size(); ++i) {
      plain[i] = plain_answer(target, prompts[i], limits);
      lengths.insert(plain[i].size());
    }
    EXPECT_GE(lengths.size(), 3U) << tested.name;
    for (const auto shape : {DraftShape::kChain, DraftShape::kTree}) {
      DrafterSource source(target, drafter, {.shape = shape, .tree_budget = 7});
      const auto result = decode_speculatively(target, source, prompts, limits);
      for (size_t i = 0; i < prompts.size(); ++i) {
        EXPECT_EQ(result.answers[i].tokens, plain[i]) << tested.name << " " << i;
        DrafterSource alone(target, drafter, {.shape = shape, .tree_budget = 7});
        EXPECT_EQ(
            result.answers[i].rounds,
            decode_speculatively(target, alone, {prompts[i]}, limits).answers.front().rounds)
            << tested.name << " " << i;
      }
    }
  }
}

/// F16's script: matches [1,1,0], [0,1,1], [1,1,1], four responses side by side.
TEST(TreeDecode, CountsScriptedRoundsAsTheyAreEmitted) {
  const testing::MarkovModels models([](int64_t x) { return (x + 1) % 22; });
  const auto draft_round = [](const Anchor& anchor) {
    const int64_t t = anchor.token;
    if (anchor.place == 0) return make_line_tree({t + 1, t + 2, t});
    if (anchor.place == 3) return make_line_tree({t, t + 2, t + 3});
    return make_line_tree({t + 1, t + 2, t + 3});
  };
  ScriptedSource source(3, 3, draft_round);
  const auto count = [&](const DecodeLimits& limits) {
    const auto result = decode_speculatively(models.target, source, {{1}, {1}, {1}, {1}}, limits);
    std::vector<Ids> emitted;
    for (const auto& answer : result.answers) {
      emitted.emplace_back();
      for (const Round& round :
           count_emitted(answer.rounds, limits.max_new_tokens - 1, limits.stop_ids))
        emitted.back().push_back(round.emitted);
    }
    EXPECT_EQ(emitted, std::vector<Ids>(4, emitted.front()));
    return emitted.front();
  };
  EXPECT_EQ(count({9, {}}), (Ids{3, 1, 4}));   // P
  EXPECT_EQ(count({9, {8}}), (Ids{3, 1, 2}));  // Q: the third round's second draft
  EXPECT_EQ(count({7, {}}), (Ids{3, 1, 2}));   // R
  EXPECT_EQ(count({5, {}}), (Ids{3, 1}));      // the limit is met exactly
}

}  // namespace
}  // namespace draftsmith::eval
