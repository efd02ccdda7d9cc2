// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/swiglu.h"

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

TEST(Swiglu, EqualsALoopInFloat64) {
  const auto gate = 3 * random_normal({5, 19}, 1);
  const auto up = random_normal({5, 19}, 2);
  auto expected = torch::zeros_like(gate);
  for (int64_t i = 0; i < gate.numel(); ++i) {
    const double x = gate.view({-1})[i].item<double>();
    expected.view({-1})[i] = x / (1 + std::exp(-x)) * up.view({-1})[i].item<double>();
  }
  EXPECT_LE(max_difference(swiglu(gate, up), expected), 1e-13);
}

TEST(Swiglu, HasTheGradientOfCentralDifferences) {
  auto gate = random_normal({3, 7}, 1);
  auto up = random_normal({3, 7}, 2);
  const auto upstream = random_normal({3, 7}, 3);
  gate.set_requires_grad(true);
  up.set_requires_grad(true);
  const auto analytic = torch::autograd::grad({(swiglu(gate, up) * upstream).sum()}, {gate, up});
  gate.set_requires_grad(false);
  up.set_requires_grad(false);
  const auto value = [&] { return (swiglu(gate, up) * upstream).sum().item<double>(); };
  EXPECT_LE(max_difference(analytic[0], numeric_gradient(value, gate)), 1e-7);
  EXPECT_LE(max_difference(analytic[1], numeric_gradient(value, up)), 1e-7);
}

TEST(Swiglu, RoundsSiluAndTheProductInBfloat16) {
  const auto gate = random_normal({4, 33}, 1).to(torch::kBFloat16);
  const auto up = random_normal({4, 33}, 2).to(torch::kBFloat16);
  const auto exact = swiglu(gate.to(torch::kDouble), up.to(torch::kDouble));
  const auto half = swiglu(gate, up);
  ASSERT_EQ(half.scalar_type(), torch::kBFloat16);
  // Two roundings of half a step each, and a little for the float32 arithmetic before them.
  const auto bound = exact.abs() * (2 * std::exp2(-8) * 1.01) + 1e-30;
  EXPECT_TRUE(((half.to(torch::kDouble) - exact).abs() <= bound).all().item<bool>());
}

TEST(Swiglu, StaysFiniteForLargeGates) {
  const auto gate = torch::tensor({-1000.0F, 1000.0F, 0.0F});
  const auto out = swiglu(gate, torch::ones({3}));
  EXPECT_TRUE(out.equal(torch::tensor({0.0F, 1000.0F, 0.0F})));
}

TEST(Swiglu, RefusesShapesThatDisagree) {
  testing::expect_error<ShapeError>([] { swiglu(torch::ones({2, 3}), torch::ones({3, 2})); });
}

}  // namespace
}  // namespace draftsmith::ops
