// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/split_float.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/golden.h"
#include "tests/support/reference.h"

namespace draftsmith::ops {
namespace {

using torch::Tensor;

/// float32 numbers of these bits.
Tensor from_bits(const std::vector<int64_t>& bits) {
  return torch::tensor(bits, torch::kLong).to(torch::kInt).view(torch::kFloat);
}

void expect_same_bits(const Tensor& values) {
  const auto high = torch::empty_like(values, torch::kBFloat16);
  const auto low = torch::empty_like(values, torch::kShort);
  split_float(values, high, low);
  EXPECT_TRUE(join_float(high, low).view(torch::kInt).equal(values.view(torch::kInt)));
}

TEST(SplitFloat, GivesEveryNumberBack) {
  // All low halves of a few high halves, and the edges of the format.
  for (const int64_t high : {0x0000, 0x3f80, 0x3f81, 0x0080, 0x7f7f, 0x8000, 0xbf81, 0xff7f})
    expect_same_bits(
        (torch::arange(0x10000, torch::kLong) + (high << 16)).to(torch::kInt).view(torch::kFloat));
  const float infinity = std::numeric_limits<float>::infinity();
  expect_same_bits(torch::tensor({infinity, -infinity, 0.0F, -0.0F, 1e-45F, -1e-45F}));
  expect_same_bits(testing::random_normal({1000}, 1).to(torch::kFloat));
}

TEST(SplitFloat, RoundsToTheNearestAndHalvesAwayFromZero) {
  const auto values = from_bits({0x3f807fff, 0x3f808000, 0x3f808001, 0x3f818000, 0xbf808000});
  const auto high = torch::empty({5}, torch::kBFloat16);
  split_float(values, high, {});
  EXPECT_TRUE(high.to(torch::kFloat)
                  .equal(from_bits({0x3f800000, 0x3f810000, 0x3f810000, 0x3f820000, 0xbf810000})));
  const auto random = testing::random_normal({10000}, 2).to(torch::kFloat);
  const auto rounded = torch::empty({10000}, torch::kBFloat16);
  split_float(random, rounded, {});
  // Halves are one in 2^16, and these have none.
  EXPECT_TRUE(rounded.equal(random.to(torch::kBFloat16)));
}

}  // namespace
}  // namespace draftsmith::ops
