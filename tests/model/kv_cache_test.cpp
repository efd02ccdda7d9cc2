// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/model/kv_cache.h"

#include <gtest/gtest.h>

#include "tests/support/golden.h"
#include "tests/support/tiny_models.h"

namespace draftsmith::model {
namespace {

using testing::max_difference;

const std::vector<int64_t> kLayers = {0, 1, 2, 3};

struct KvCacheForward : ::testing::TestWithParam<const char*> {
  Target target = testing::load_target(GetParam());
  torch::Tensor ids = torch::tensor(testing::make_ids(26, 211, 1), torch::kLong).view({2, 13});
  TargetStates whole = target.forward(ids, kLayers);
  // The same float32 sums in another order; the hybrid's small values before its gated norm
  // make errors some ten times as large.
  double tolerance = target.config().is_hybrid() ? 1e-4 : 1e-5;

  void expect_columns(
      const TargetStates& part,
      int64_t b,
      int64_t row,
      int64_t begin,
      int64_t count) const {
    EXPECT_LE(
        max_difference(
            part.features[row].narrow(0, 0, count), whole.features[b].narrow(0, begin, count)),
        tolerance);
    EXPECT_LE(
        max_difference(part.last[row].narrow(0, 0, count), whole.last[b].narrow(0, begin, count)),
        tolerance);
  }
};

TEST_P(KvCacheForward, EqualsTheWholeForwardInPieces) {
  auto cache = target.make_cache(2, 13);
  int64_t begin = 0;
  for (const int64_t count : {1, 3, 1, 5, 3}) {
    const auto part = target.forward(ids.narrow(1, begin, count), kLayers, cache);
    for (const int64_t b : {0, 1})
      expect_columns(part, b, b, begin, count);
    begin += count;
    EXPECT_EQ(cache.lengths(), (std::vector<int64_t>{begin, begin}));
  }
}

TEST_P(KvCacheForward, EqualsTheWholeForwardWithRowsOfDifferentLengths) {
  auto cache = target.make_cache(2, 20);
  const auto first = target.forward(ids.narrow(1, 0, 6), kLayers, cache, {6, 2});
  expect_columns(first, 0, 0, 0, 6);
  expect_columns(first, 1, 1, 0, 2);
  EXPECT_EQ(cache.lengths(), (std::vector<int64_t>{6, 2}));
  const auto next = torch::stack({ids[0].narrow(0, 6, 4), ids[1].narrow(0, 2, 4)});
  const auto second = target.forward(next, kLayers, cache, {1, 4});
  expect_columns(second, 0, 0, 6, 1);
  expect_columns(second, 1, 1, 2, 4);
  const auto third = target.forward(
      torch::stack({ids[0].narrow(0, 7, 3), ids[1].narrow(0, 6, 3)}), kLayers, cache);
  expect_columns(third, 0, 0, 7, 3);
  expect_columns(third, 1, 1, 6, 3);
}

TEST_P(KvCacheForward, GoesOnWithTheSelectedRows) {
  auto cache = target.make_cache(2, 20);
  target.forward(ids.narrow(1, 0, 6), kLayers, cache, {6, 2});
  cache.select_rows({1, 0});
  EXPECT_EQ(cache.lengths(), (std::vector<int64_t>{2, 6}));
  const auto both = target.forward(
      torch::stack({ids[1].narrow(0, 2, 2), ids[0].narrow(0, 6, 2)}), kLayers, cache);
  expect_columns(both, 1, 0, 2, 2);
  expect_columns(both, 0, 1, 6, 2);
  cache.select_rows({1});
  EXPECT_EQ(cache.num_rows(), 1);
  expect_columns(target.forward(ids.narrow(0, 0, 1).narrow(1, 8, 3), kLayers, cache), 0, 0, 8, 3);
}

INSTANTIATE_TEST_SUITE_P(
    Targets,
    KvCacheForward,
    ::testing::Values("targets/llama-tiny", "targets/qwen3-tiny", "targets/qwen3_5-tiny"),
    [](const auto& tested) { return testing::short_name(tested.param); });

TEST(KvCache, WritesAtTheLengthOfEachRow) {
  KvCache cache(1, 2, 6, 1, 2, torch::kFloat);
  cache.advance({1, 3});
  EXPECT_TRUE(
      cache.next_positions(2).equal(torch::tensor({1, 2, 3, 4}, torch::kLong).view({2, 2})));
  cache.write(0, torch::ones({2, 2, 1, 2}), torch::full({2, 2, 1, 2}, 2.0F));
  const auto written = cache.keys(0).sum(-1).squeeze(-1);
  EXPECT_TRUE(written.equal(
      torch::tensor({0, 2, 2, 0, 0, 0, 0, 0, 0, 2, 2, 0}).view({2, 6}).to(torch::kFloat)));
  EXPECT_EQ(cache.values(0).narrow(1, 0, 3).sum().item<float>(), 8);
  EXPECT_EQ(cache.lengths(), (std::vector<int64_t>{1, 3}));
}

TEST(KvCache, KeepsAPathOfTheTokensWrittenLast) {
  KvCache cache(1, 2, 8, 1, 1, torch::kFloat);
  cache.advance({1, 2});
  const auto tokens = torch::arange(10).view({2, 5, 1, 1}).to(torch::kFloat);
  cache.write(0, tokens, -tokens);
  cache.keep({{0, 2, 4}, {0}});
  EXPECT_EQ(cache.lengths(), (std::vector<int64_t>{4, 3}));
  EXPECT_TRUE(cache.keys(0)[0].flatten().narrow(0, 0, 4).equal(torch::tensor({0.F, 0.F, 2.F, 4.F})));
  EXPECT_EQ(cache.values(0)[1][2].item<float>(), -5);
}

TEST(KvCache, RefusesToOverflowOrToKeepWhatIsNoPath) {
  KvCache cache(1, 1, 4, 1, 2, torch::kFloat);
  cache.advance({3});
  EXPECT_THROW(
      cache.write(0, torch::ones({1, 2, 1, 2}), torch::ones({1, 2, 1, 2})), std::logic_error);
  EXPECT_THROW(cache.keep({{0, 0}}), std::logic_error);
  EXPECT_THROW(cache.keep({{1}}), std::logic_error);
  EXPECT_THROW(cache.advance({1, 1}), std::logic_error);
  EXPECT_NO_THROW(cache.keep({{0}}));
}

}  // namespace
}  // namespace draftsmith::model
