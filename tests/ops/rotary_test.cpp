// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/rotary.h"

#include <gtest/gtest.h>

#include <cmath>

#include <torch/csrc/autograd/autograd.h>

#include "draftsmith/base/error.h"

#include "tests/support/golden.h"
#include "tests/support/reference.h"

namespace draftsmith::ops {
namespace {

using testing::max_difference;
using testing::numeric_gradient;
using testing::random_normal;

constexpr double kFactor = 1.25;

torch::Tensor frequencies() { return torch::tensor({1.0, 0.3, 0.01}, torch::kDouble); }
torch::Tensor positions() {
  return torch::tensor({0, 1, 7, 1000, 3, 4, 5, 6}, torch::kLong).view({2, 4});
}

torch::Tensor rotate(const torch::Tensor& x) {
  return apply_rotary(x, make_rotary_angles(positions(), frequencies(), kFactor, torch::kDouble));
}

TEST(Rotary, LeavesTheRestOfAHeadThatRotatesInPartAlone) {
  const auto x = random_normal({2, 4, 3, 11}, 1);
  const auto rotated = rotate(x);
  EXPECT_TRUE(rotated.narrow(-1, 0, 6).equal(rotate(x.narrow(-1, 0, 6).contiguous())));
  EXPECT_TRUE(rotated.narrow(-1, 6, 5).equal(x.narrow(-1, 6, 5)));
}

TEST(Rotary, EqualsALoopInFloat64) {
  const auto x = random_normal({2, 4, 3, 6}, 1);
  auto expected = torch::zeros_like(x);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t s = 0; s < 4; ++s) {
      for (int64_t h = 0; h < 3; ++h) {
        for (int64_t j = 0; j < 3; ++j) {
          const double angle = positions()[b][s].item<double>() * frequencies()[j].item<double>();
          const double low = x[b][s][h][j].item<double>();
          const double high = x[b][s][h][j + 3].item<double>();
          expected[b][s][h][j] = kFactor * (low * std::cos(angle) - high * std::sin(angle));
          expected[b][s][h][j + 3] = kFactor * (high * std::cos(angle) + low * std::sin(angle));
        }
      }
    }
  }
  EXPECT_LE(max_difference(rotate(x), expected), 1e-13);
}

TEST(Rotary, HasTheGradientOfCentralDifferences) {
  auto x = random_normal({2, 4, 1, 6}, 1);
  const auto upstream = random_normal({2, 4, 1, 6}, 2);
  x.set_requires_grad(true);
  const auto analytic = torch::autograd::grad({(rotate(x) * upstream).sum()}, {x})[0];
  x.set_requires_grad(false);
  const auto numeric =
      numeric_gradient([&] { return (rotate(x) * upstream).sum().item<double>(); }, x);
  EXPECT_LE(max_difference(analytic, numeric), 1e-7);
}

TEST(Rotary, SharesAnglesAmongRowsOfEqualPositions) {
  const auto x = random_normal({2, 4, 3, 6}, 1);
  const auto shared = make_rotary_angles(
      torch::arange(4, torch::kLong).view({1, 4}), frequencies(), 1, torch::kDouble);
  const auto apart = make_rotary_angles(
      torch::arange(4, torch::kLong).repeat({2, 1}), frequencies(), 1, torch::kDouble);
  EXPECT_TRUE(apply_rotary(x, shared).equal(apply_rotary(x, apart)));
}

TEST(Rotary, ComputesAnglesInFloat32WhateverTheDtype) {
  // 1023 is no bfloat16 number: angles formed in bfloat16 would be those of position 1024.
  const auto position = torch::full({1, 1}, 1023, torch::kLong);
  const auto wide = frequencies().to(torch::kFloat);
  const auto exact = make_rotary_angles(position, wide, 1, torch::kFloat);
  const auto half = make_rotary_angles(position, wide, 1, torch::kBFloat16);
  EXPECT_TRUE(half.cos.equal(exact.cos.to(torch::kBFloat16)));
  EXPECT_TRUE(half.sin.equal(exact.sin.to(torch::kBFloat16)));
}

TEST(Rotary, RefusesAnglesOfAnotherLength) {
  const auto angles = make_rotary_angles(positions(), frequencies(), 1, torch::kDouble);
  testing::expect_error<ShapeError>(
      [&] {
        apply_rotary(random_normal({2, 5, 3, 6}, 1), angles);
      },
      {"rotary"});
}

}  // namespace
}  // namespace draftsmith::ops
