// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/top_k.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "draftsmith/base/error.h"

#include "tests/support/golden.h"
#include "tests/support/reference.h"

namespace draftsmith::ops {
namespace {

/// Sorting is stable, so of equal logits the smaller id stays first.
void expect_equals_definition(const torch::Tensor& logits, int64_t k) {
  const auto top = top_k(logits, k);
  const auto wide = logits.to(torch::kDouble);
  const auto order = std::get<1>(wide.sort(/*stable=*/true, -1, /*descending=*/true));
  EXPECT_TRUE(top.ids.equal(order.narrow(1, 0, k))) << logits.sizes() << " " << k;
  const auto expected = wide.log_softmax(-1).gather(1, top.ids);
  // One rounding of the result, and float32 sums over tiles of 1,024.
  const double tolerance = 32 * std::exp2(-24) * (1 + expected.abs().max().item<double>());
  EXPECT_LE(testing::max_difference(top.log_probs, expected), tolerance);
}

TEST(TopK, EqualsTheDefinitionAtEveryWidth) {
  for (const int64_t V : {1, 2, 23, 1024, 1025, 2100, 5000}) {
    const auto logits = testing::random_normal({3, V}, static_cast<uint64_t>(V)) * 4;
    for (const int64_t k : {int64_t{1}, int64_t{2}, int64_t{32}, int64_t{300}, V}) {
      if (k > V) continue;
      expect_equals_definition(logits.to(torch::kFloat), k);
      expect_equals_definition(logits.to(torch::kBFloat16), k);
    }
  }
}

TEST(TopK, GivesTiesToTheSmallerId) {
  const auto logits = torch::tensor({1.0F, 2.0F, 2.0F, 0.0F, -0.0F, 2.0F}).view({1, 6});
  EXPECT_TRUE(
      top_k(logits, 6).ids.equal(torch::tensor({1, 2, 5, 0, 3, 4}, torch::kLong).view({1, 6})));
  // Few values over many tiles: ties at the threshold everywhere.
  const auto steps = (testing::random_normal({2, 7000}, 1) * 2).round().to(torch::kFloat);
  for (const int64_t k : {1, 5, 100, 2000})
    expect_equals_definition(steps, k);
}

TEST(TopK, FindsTheBestWhateverTheOrder) {
  const auto rising = torch::arange(6000, torch::kFloat).view({1, 6000}) / 512;
  expect_equals_definition(rising, 200);
  expect_equals_definition(rising.flip(1), 200);
}

TEST(TopK, CountsExcludedTokensAsImpossible) {
  auto logits = torch::full({1, 3000}, -std::numeric_limits<float>::infinity());
  logits[0][7] = 1.0F;
  logits[0][2999] = 1.0F;
  const auto top = top_k(logits, 4);
  EXPECT_TRUE(top.ids.equal(torch::tensor({7, 2999, 0, 1}, torch::kLong).view({1, 4})));
  EXPECT_NEAR(top.log_probs[0][1].item<double>(), -std::log(2.0), 1e-6);
  EXPECT_TRUE(std::isinf(top.log_probs[0][2].item<double>()));
}

TEST(TopK, AddsUpAWholeVocabularyAccurately) {
  // 248,320 equal logits: every log-probability is -log V.
  const auto top = top_k(torch::full({1, 248320}, 3.25F), 2);
  EXPECT_NEAR(top.log_probs[0][0].item<double>(), -std::log(248320.0), 1e-6);
}

TEST(TopK, RefusesWhatItCannotAnswer) {
  const auto logits = torch::zeros({2, 5});
  EXPECT_THROW(top_k(logits, 0), ShapeError);
  EXPECT_THROW(top_k(logits, 6), ShapeError);
  EXPECT_THROW(top_k(logits[0], 1), ShapeError);
  EXPECT_THROW(top_k(logits.to(torch::kDouble), 1), ShapeError);
}

}  // namespace
}  // namespace draftsmith::ops
