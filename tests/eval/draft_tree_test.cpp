// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/eval/draft_tree.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "draftsmith/formats/json.h"

#include "tests/support/golden.h"
#include "tests/support/reference.h"

namespace draftsmith::eval {
namespace {

using Ids = std::vector<int64_t>;

TEST(DraftTree, EqualsTheReferenceAtEveryBudget) {
  int64_t count = 0;
  for (const auto& item : formats::read_json_file(testing::fixture("ddtree/expected.json"))) {
    const auto file =
        testing::golden(fmt::format("ddtree/logits-{}.safetensors", item.at("seed").get<int>()));
    const auto budget = item.at("budget").get<int64_t>();
    const auto tree = build_draft_tree(file.tensor("logits"), budget);
    EXPECT_EQ(tree.tokens, item.at("tokens").get<Ids>()) << budget;
    EXPECT_EQ(tree.depths, item.at("depths").get<Ids>()) << budget;
    EXPECT_EQ(tree.parents, item.at("parents").get<Ids>()) << budget;
    ++count;
  }
  EXPECT_EQ(count, 13);
}

TEST(DraftTree, SettlesTiesByRanks) {
  const auto tree = build_draft_tree(torch::zeros({2, 2}), 6);
  EXPECT_EQ(tree.tokens, (Ids{0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(tree.depths, (Ids{1, 1, 2, 2, 2, 2}));
  EXPECT_EQ(tree.parents, (Ids{0, 0, 1, 1, 2, 2}));
}

TEST(DraftTree, ExpectsWhatItsProbabilitiesAddUpTo) {
  const auto marginals =
      torch::tensor({0.6, 0.3, 0.1, 0.5, 0.4, 0.1, 0.7, 0.2, 0.1}).view({3, 3}).log();
  const auto tree = build_draft_tree(marginals.to(torch::kFloat), 6);
  EXPECT_NEAR(tree.expected_accepted(), 1.818, 1e-6);
  EXPECT_EQ(tree.num_nodes(), 6);
  EXPECT_NEAR(std::exp(tree.log_probs[3]), 0.24, 1e-6);
  EXPECT_EQ(build_draft_tree(marginals.to(torch::kFloat), 0).expected_accepted(), 0);
}

TEST(DraftTree, HoldsTheMostProbablePrefixesOfAll) {
  // All 4 + 16 + 64 prefixes by brute force; the tree must hold the best of them.
  const auto logits = (testing::random_normal({3, 4}, 5) * 2).to(torch::kFloat);
  const auto log_probs = logits.to(torch::kDouble).log_softmax(-1);
  std::vector<double> all;
  for (int64_t a = 0; a < 4; ++a) {
    const double first = log_probs[0][a].item<double>();
    all.push_back(first);
    for (int64_t b = 0; b < 4; ++b) {
      const double second = first + log_probs[1][b].item<double>();
      all.push_back(second);
      for (int64_t c = 0; c < 4; ++c)
        all.push_back(second + log_probs[2][c].item<double>());
    }
  }
  std::sort(all.begin(), all.end(), std::greater<>());
  const auto tree = build_draft_tree(logits, 100);
  ASSERT_EQ(tree.num_nodes(), 84);  // there are no more
  for (size_t i = 0; i < all.size(); ++i)
    EXPECT_NEAR(tree.log_probs[i], all[i], 1e-5);
}

TEST(DraftTree, PutsParentsFirstAndGivesSiblingsDifferentTokens) {
  const auto tree = build_draft_tree(testing::random_normal({7, 50}, 2).to(torch::kFloat), 200);
  std::set<std::pair<int64_t, int64_t>> children;
  for (size_t i = 0; i < tree.tokens.size(); ++i) {
    const int64_t parent = tree.parents[i];
    EXPECT_LT(parent, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(tree.depths[i], parent == 0 ? 1 : tree.depths[static_cast<size_t>(parent - 1)] + 1);
    EXPECT_TRUE(children.insert({parent, tree.tokens[i]}).second);
    if (i > 0) {
      EXPECT_LE(tree.log_probs[i], tree.log_probs[i - 1]);
    }
  }
}

TEST(DraftTree, IsTheRootAloneWithoutBudgetOrRows) {
  EXPECT_EQ(build_draft_tree(torch::zeros({2, 5}), 0).num_nodes(), 0);
  EXPECT_EQ(build_draft_tree(torch::zeros({2, 5}), -3).num_nodes(), 0);
  EXPECT_EQ(build_draft_tree(torch::zeros({0, 5}), 8).num_nodes(), 0);
}

TEST(DraftTree, LeavesOutWhatTheDrafterExcludes) {
  auto logits = torch::zeros({1, 6});
  logits[0].narrow(0, 2, 4).fill_(-std::numeric_limits<float>::infinity());
  EXPECT_EQ(build_draft_tree(logits, 6).tokens, (Ids{0, 1}));
}

TEST(DraftTree, IsALineOfOneNodePerDepthForAChain) {
  const auto tree = make_line_tree({7, 7, 9});
  EXPECT_EQ(tree.tokens, (Ids{7, 7, 9}));
  EXPECT_EQ(tree.depths, (Ids{1, 2, 3}));
  EXPECT_EQ(tree.parents, (Ids{0, 1, 2}));
}

}  // namespace
}  // namespace draftsmith::eval
