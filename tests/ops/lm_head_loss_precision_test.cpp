// SPDX-License-Identifier: Apache-2.0
// Against float64 on the same bfloat16 hidden states and head; and chunks beyond 2^31 logits.
#include <gtest/gtest.h>

#include <cmath>

#include <torch/csrc/autograd/autograd.h>

#include "draftsmith/ops/lm_head_loss.h"

#include "tests/support/golden.h"
#include "tests/support/reference.h"

namespace draftsmith::ops {
namespace {

using testing::random_normal;
using testing::relative_difference;
using torch::Tensor;

constexpr int64_t kRows = 24;
constexpr int64_t kWidth = 512;
constexpr int64_t kVocab = 32768;

/// Rows whose logits are about N(0, 3^2). Where `is_near`, the teacher's hidden states differ from
/// the student's by 0.7 %; otherwise they are others.
struct PrecisionCase {
  LossRows rows;
  Tensor lm_head;
};

PrecisionCase make_case(bool is_near) {
  PrecisionCase c;
  const auto hidden = random_normal({kRows, kWidth}, 1);
  const auto other = random_normal({kRows, kWidth}, 2);
  c.rows.hidden = hidden.to(torch::kBFloat16);
  c.rows.teacher_states = (is_near ? hidden + 0.007 * other : other).to(torch::kBFloat16);
  c.rows.teacher_rows = torch::arange(kRows, torch::kLong);
  c.rows.weights = torch::ones({kRows});
  c.lm_head = (random_normal({kVocab, kWidth}, 3) * (3 / std::sqrt(kWidth))).to(torch::kBFloat16);
  // Even rows are predicted right, so that CAP counts there.
  c.rows.labels = torch::mm(c.rows.hidden.to(torch::kDouble), c.lm_head.to(torch::kDouble).t())
                      .argmax(1)
                      .contiguous();
  for (int64_t r = 1; r < kRows; r += 2)
    c.rows.labels[r] = 97 * r;
  return c;
}

PrecisionCase in_float64(const PrecisionCase& c) {
  PrecisionCase wide = c;
  wide.rows.hidden = c.rows.hidden.to(torch::kDouble);
  wide.rows.teacher_states = c.rows.teacher_states.to(torch::kDouble);
  wide.rows.weights = c.rows.weights.to(torch::kDouble);
  wide.lm_head = c.lm_head.to(torch::kDouble);
  return wide;
}

/// The gradient of one term alone: of all at the given weights, less that of the cross-entropy.
Tensor gradient(PrecisionCase c, const LossOptions& options) {
  c.rows.hidden = c.rows.hidden.detach().clone().set_requires_grad(true);
  const auto terms = lm_head_loss(c.rows, c.lm_head, options);
  return torch::autograd::grad({terms.loss_sum}, {c.rows.hidden})[0].to(torch::kDouble);
}

/// Large weights make one term stand alone: the others' share falls below the rounding.
constexpr double kAlone = 1e4;

double error_of(const PrecisionCase& c, LossOptions options) {
  options.chunk_rows = 13;
  return relative_difference(gradient(c, options), gradient(in_float64(c), options));
}

TEST(LmHeadLossPrecision, HoldsForTheCrossEntropy) {
  EXPECT_LE(error_of(make_case(false), {}), 0.01);
}

TEST(LmHeadLossPrecision, HoldsForTheConfidenceTerm) {
  auto c = make_case(false);
  EXPECT_LE(error_of(c, {.cap_weight = kAlone}), 0.01);
}

TEST(LmHeadLossPrecision, HoldsForTheDivergence) {
  EXPECT_LE(error_of(make_case(false), {.kl_weight = kAlone}), 0.01);
}

TEST(LmHeadLossPrecision, HoldsForTheDivergenceNearAgreement) {
  // The divergence's gradient is small here: only a far larger weight lets it stand alone.
  EXPECT_LE(error_of(make_case(true), {.kl_weight = 1e7}), 0.01);
}

TEST(SlowLmHeadLoss, GivesTheSameToARowInAChunkBeyondTwoToTheThirtyOne) {
  constexpr int64_t kManyRows = 16384;
  constexpr int64_t kManyWords = 151936;  // 2.49e9 logits: row 14134 crosses 2^31
  const auto make = [&](int64_t first, int64_t count) {
    const auto numbers = torch::arange(first, first + count, torch::kFloat);
    return torch::stack({(numbers * 0.37).sin(), (numbers * 0.11).cos()}, 1).to(torch::kBFloat16);
  };
  const auto lm_head = (torch::stack(
                            {torch::arange(kManyWords, torch::kFloat).sin(),
                             torch::arange(kManyWords, torch::kFloat).cos()},
                            1) *
                        3)
                           .to(torch::kBFloat16);
  const auto run = [&](int64_t first, int64_t count) {
    LossRows rows{
        make(first, count).set_requires_grad(true),
        torch::full({count}, 20224, torch::kLong),
        torch::ones({count}),
        {},
        {}};
    const auto terms = lm_head_loss(rows, lm_head, {});
    return std::pair(terms.ce, torch::autograd::grad({terms.loss_sum}, {rows.hidden})[0]);
  };
  const auto [ce, gradient] = run(0, kManyRows);
  for (const int64_t row : {0, 14133, 14134, 14135, 16383}) {
    const auto [alone_ce, alone_gradient] = run(row, 1);
    EXPECT_NEAR(ce[row].item<double>(), alone_ce[0].item<double>(), 1e-3) << row;
    EXPECT_LE(relative_difference(gradient[row], alone_gradient[0]), std::exp2(-8)) << row;
  }
}

}  // namespace
}  // namespace draftsmith::ops
