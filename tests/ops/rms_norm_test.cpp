// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/rms_norm.h"

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

constexpr double kEps = 1e-3;  // large enough that forgetting it shows

torch::Tensor norm_in_a_loop(const torch::Tensor& x, const torch::Tensor& weight) {
  auto out = torch::zeros_like(x);
  for (int64_t r = 0; r < x.size(0); ++r) {
    double square_sum = 0;
    for (int64_t d = 0; d < x.size(1); ++d)
      square_sum += std::pow(x[r][d].item<double>(), 2);
    const double scale = 1 / std::sqrt(square_sum / static_cast<double>(x.size(1)) + kEps);
    for (int64_t d = 0; d < x.size(1); ++d)
      out[r][d] = x[r][d].item<double>() * scale * weight[d].item<double>();
  }
  return out;
}

TEST(RmsNorm, EqualsALoopInFloat64) {
  const auto x = random_normal({5, 7}, 1);
  const auto weight = random_normal({7}, 2);
  EXPECT_LE(max_difference(rms_norm(x, weight, kEps), norm_in_a_loop(x, weight)), 1e-14);
}

TEST(RmsNorm, ZeroCentredMultipliesByOnePlusTheWeightAndRoundsLast) {
  const auto x = random_normal({5, 7}, 1);
  const auto weight = random_normal({7}, 2);
  EXPECT_LE(
      max_difference(zero_centred_rms_norm(x, weight, kEps), norm_in_a_loop(x, weight + 1)), 1e-14);
  const auto half = x.to(torch::kBFloat16);
  const auto half_weight = weight.to(torch::kBFloat16);
  const auto wanted =
      norm_in_a_loop(half.to(torch::kDouble), half_weight.to(torch::kDouble) + 1);
  // One rounding to the 8 bits of bfloat16, at most half a unit of the last.
  EXPECT_LE(
      ((zero_centred_rms_norm(half, half_weight, kEps).to(torch::kDouble) - wanted).abs() /
       wanted.abs())
          .max()
          .item<double>(),
      1.01 * std::exp2(-8));
}

TEST(RmsNorm, GatesAfterTheNorm) {
  const auto x = random_normal({5, 19}, 1);
  const auto weight = random_normal({19}, 2);
  const auto gate = 4 * random_normal({5, 19}, 3);
  const auto wanted = norm_in_a_loop(x, weight) * gate * gate.sigmoid();
  EXPECT_LE(max_difference(gated_rms_norm(x, weight, gate, kEps), wanted), 1e-13);
}

TEST(RmsNorm, HasTheGradientOfCentralDifferences) {
  auto x = random_normal({3, 6}, 1);
  auto weight = random_normal({6}, 2);
  const auto upstream = random_normal({3, 6}, 3);
  x.set_requires_grad(true);
  weight.set_requires_grad(true);
  const auto analytic =
      torch::autograd::grad({(rms_norm(x, weight, kEps) * upstream).sum()}, {x, weight});
  x.set_requires_grad(false);
  weight.set_requires_grad(false);
  const auto value = [&] { return (rms_norm(x, weight, kEps) * upstream).sum().item<double>(); };
  EXPECT_LE(max_difference(analytic[0], numeric_gradient(value, x)), 1e-7);
  EXPECT_LE(max_difference(analytic[1], numeric_gradient(value, weight)), 1e-7);
}

TEST(RmsNorm, TakesItsMeanInFloat32AndRoundsBeforeTheWeight) {
  const auto x = (300 * random_normal({4, 64}, 1)).to(torch::kBFloat16);
  const auto weight = random_normal({64}, 2).to(torch::kBFloat16);
  const auto wide = x.to(torch::kFloat);
  const auto scale = (wide.square().mean(-1, true) + kEps).rsqrt();
  EXPECT_TRUE(rms_norm(x, weight, kEps).equal((wide * scale).to(torch::kBFloat16) * weight));
}

TEST(RmsNorm, IsZeroForAZeroRow) {
  const auto out = rms_norm(torch::zeros({1, 8}), torch::ones({8}), 1e-6);
  EXPECT_EQ(out.abs().max().item<double>(), 0);
}

TEST(RmsNorm, RefusesAWeightOfAnotherWidth) {
  testing::expect_error<ShapeError>(
      [] {
        rms_norm(torch::ones({2, 8}), torch::ones({4}), 1e-6);
      },
      {"weight", "8", "4"});
}

}  // namespace
}  // namespace draftsmith::ops
