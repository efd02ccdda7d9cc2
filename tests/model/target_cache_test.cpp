// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/model/target_cache.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/support/golden.h"
#include "tests/support/tiny_models.h"

namespace draftsmith::model {
namespace {

using testing::max_difference;
using Ids = std::vector<int64_t>;

const Ids kLayers = {0, 2};
// F17: 1:A(root) 2:B(root) 3:C(1) 4:C(2) 5:D(3).
const Ids kParents = {-1, 0, 0, 1, 2, 3};

struct TargetCacheTest : ::testing::TestWithParam<const char*> {
  Target target = testing::load_target(GetParam());
  Ids prompt = testing::make_ids(10, 211, 3);

  TargetCache prefill(const Ids& ids) const {
    auto cache = target.make_cache(1, 64);
    target.forward(torch::tensor(ids, torch::kLong).unsqueeze(0), kLayers, cache);
    return cache;
  }

  /// States of tokens that are decoded one after another.
  TargetStates decode(const Ids& ids, TargetCache& cache) const {
    std::vector<torch::Tensor> features;
    std::vector<torch::Tensor> last;
    for (const int64_t id : ids) {
      const auto states = target.forward(torch::full({1, 1}, id, torch::kLong), kLayers, cache);
      features.push_back(states.features);
      last.push_back(states.last);
    }
    return {torch::cat(features, 1), torch::cat(last, 1)};
  }

  /// The next two tokens have the same bits after both caches.
  void expect_same(TargetCache left, TargetCache right) const {
    EXPECT_EQ(left.lengths(), right.lengths());
    auto first = left.clone();
    auto second = right.clone();
    const auto wanted = decode({5, 199}, first);
    const auto states = decode({5, 199}, second);
    EXPECT_TRUE(states.features.equal(wanted.features));
    EXPECT_TRUE(states.last.equal(wanted.last));
  }
};

Ids take(const Ids& ids, const Ids& index) {
  Ids result;
  for (const int64_t i : index)
    result.push_back(ids[static_cast<size_t>(i)]);
  return result;
}

TEST_P(TargetCacheTest, VerifiesEveryNodeOfATreeWithTheBitsOfItsPath) {
  const TokenTree tree{{40, 51, 62, 73, 84, 95}, kParents};
  const auto start = prefill(prompt);
  auto cache = start.clone();
  const auto states = target.verify({tree}, kLayers, cache);
  EXPECT_EQ(cache.lengths(), start.lengths());
  for (int64_t node = 0; node < tree.size(); ++node) {
    const auto path = path_to(tree, node);
    const Ids ids = take(tree.ids, path);
    auto alone = start.clone();
    const auto wanted = decode(ids, alone);
    const int64_t end = std::ssize(ids) - 1;
    EXPECT_TRUE(states.features[0][node].equal(wanted.features[0][end])) << node;
    EXPECT_TRUE(states.last[0][node].equal(wanted.last[0][end])) << node;
    // F17: and the logits of a plain forward.
    Ids whole = prompt;
    whole.insert(whole.end(), ids.begin(), ids.end());
    const auto plain = target.forward(torch::tensor(whole, torch::kLong).unsqueeze(0), {}).last;
    EXPECT_LE(
        max_difference(
            target.logits(states.last[0][node]), target.logits(plain[0][std::ssize(whole) - 1])),
        1e-4);
    // Advanced along the path, the cache is that of a target which has seen only it.
    auto advanced = cache.clone();
    advanced.commit({path});
    expect_same(advanced, alone);
  }
}

TEST_P(TargetCacheTest, CutsAChainBackToAnyOfItsTokens) {
  const Ids chain = testing::make_ids(8, 211, 4);
  const auto start = prefill(prompt);
  for (int64_t kept = 0; kept <= 8; ++kept) {
    auto cache = start.clone();
    const auto states = target.verify({make_line(chain)}, kLayers, cache);
    Ids path(static_cast<size_t>(kept));
    std::iota(path.begin(), path.end(), 0);
    cache.commit({path});
    auto alone = start.clone();
    if (kept > 0) {
      const auto wanted = decode(take(chain, path), alone);
      EXPECT_TRUE(states.last.narrow(1, 0, kept).equal(wanted.last)) << kept;
    }
    expect_same(cache, alone);
  }
}

TEST_P(TargetCacheTest, VerifiesRowsOfDifferentLengthWithTreesOfDifferentSize) {
  const std::vector<Ids> prompts = {prompt, testing::make_ids(4, 211, 8)};
  auto padded = torch::zeros({2, 10}, torch::kLong);
  for (const size_t b : {size_t{0}, size_t{1}})
    std::copy(
        prompts[b].begin(), prompts[b].end(), padded[static_cast<int64_t>(b)].data_ptr<int64_t>());
  auto cache = target.make_cache(2, 40);
  target.forward(padded, kLayers, cache, {10, 4});
  const std::vector<TokenTree> trees = {make_line({1, 2}), {{40, 51, 62, 73, 84, 95}, kParents}};
  const auto states = target.verify(trees, kLayers, cache);
  cache.commit({{0, 1}, {0, 2, 4}});
  EXPECT_EQ(cache.lengths(), (Ids{12, 7}));
  const auto next = target.forward(torch::tensor({{9}, {9}}, torch::kLong), kLayers, cache);
  for (const size_t b : {size_t{0}, size_t{1}}) {
    const auto row = static_cast<int64_t>(b);
    auto alone = prefill(prompts[b]);
    const auto own = target.verify({trees[b]}, kLayers, alone);
    alone.commit({b == 0 ? Ids{0, 1} : Ids{0, 2, 4}});
    const auto after = decode({9}, alone);
    // Prefills of one and of two rows round differently.
    const double tolerance = target.config().is_hybrid() ? 1e-4 : 1e-5;
    EXPECT_LE(
        max_difference(states.last[row].narrow(0, 0, trees[b].size()), own.last[0]), tolerance);
    EXPECT_LE(max_difference(next.last[row], after.last[0]), tolerance);
  }
}

TEST_P(TargetCacheTest, DecodesManySequencesWithTheBitsOfEachAlone) {
  constexpr int64_t kRows = 48;  // `generate` decodes as many
  const auto start = prefill(prompt);
  auto cache = start.clone();
  cache.select_rows(Ids(kRows, 0));
  std::vector<TargetStates> steps;
  for (const int64_t step : {0, 1}) {
    const auto ids = torch::arange(kRows, torch::kLong).unsqueeze(1) * 4 + step;
    steps.push_back(target.forward(ids, kLayers, cache));
  }
  for (int64_t b = 0; b < kRows; ++b) {
    auto alone = start.clone();
    const auto wanted = decode({4 * b, 4 * b + 1}, alone);
    for (const int64_t step : {0, 1}) {
      const auto& states = steps[static_cast<size_t>(step)];
      EXPECT_TRUE(states.features[b].equal(wanted.features[0].narrow(0, step, 1))) << b;
      EXPECT_TRUE(states.last[b].equal(wanted.last[0].narrow(0, step, 1))) << b;
      EXPECT_TRUE(
          target.logits(states.last)[b].equal(target.logits(wanted.last.narrow(1, step, 1))[0]))
          << b;
    }
  }
}

TEST_P(TargetCacheTest, KeepsASnapshotThatLaterTokensDoNotTouch) {
  auto cache = prefill(prompt);
  const auto snapshot = cache.clone();
  const auto first = decode({1, 2, 3}, cache);
  auto again = snapshot.clone();
  EXPECT_TRUE(decode({1, 2, 3}, again).last.equal(first.last));
}

TEST_P(TargetCacheTest, RefusesWhatIsNoPathOfTheTree) {
  auto cache = prefill(prompt);
  EXPECT_THROW(cache.commit({{0}}), std::logic_error);
  target.verify({TokenTree{{40, 51, 62, 73, 84, 95}, kParents}}, kLayers, cache);
  for (const Ids& path : {Ids{1}, Ids{0, 3}, Ids{0, 1, 4}, Ids{0, 0}, Ids{6}})
    EXPECT_THROW(cache.commit({path}), std::logic_error);
  EXPECT_THROW(cache.commit({{0}, {0}}), std::logic_error);
  EXPECT_THROW(cache.select_rows({0}), std::logic_error);
  cache.commit({{0, 2, 4}});
  EXPECT_THROW(cache.commit({{0}}), std::logic_error);
}

INSTANTIATE_TEST_SUITE_P(
    Targets,
    TargetCacheTest,
    ::testing::Values("targets/llama-tiny", "targets/qwen3-tiny", "targets/qwen3_5-tiny"),
    [](const auto& tested) { return testing::short_name(tested.param); });

}  // namespace
}  // namespace draftsmith::model
