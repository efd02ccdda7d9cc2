// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/lm_head_loss.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include <torch/csrc/autograd/autograd.h>

#include "draftsmith/ops/head_chunk.h"

#include "tests/support/golden.h"
#include "tests/support/reference.h"

namespace draftsmith::ops {
namespace {

using testing::golden;
using testing::max_difference;
using testing::numeric_gradient;
using testing::random_normal;
using testing::relative_difference;
using torch::Tensor;

constexpr LossMethod kMethods[] = {LossMethod::kFused, LossMethod::kRecompute, LossMethod::kFull};

LossTerms run(LossMethod method, const LossRows& rows, const Tensor& lm_head, LossOptions options) {
  options.method = method;
  return lm_head_loss(rows, lm_head, options);
}

struct Case {
  LossRows rows;
  Tensor lm_head;
};

Tensor gradient_of(const LossTerms& terms, const Tensor& hidden, double upstream = 1) {
  return torch::autograd::grad({terms.loss_sum * upstream}, {hidden})[0];
}

/// Rows of F13 (a): ids 0 and 12 among the labels, rows 0 and 5 of weight 0; the labels of rows
/// 1 and 4 are the draft's argmax; neighbouring rows share teacher rows.
Case make_case(torch::ScalarType dtype = torch::kDouble) {
  Case c;
  c.rows.hidden = random_normal({7, 8}, 1).to(dtype);
  c.lm_head = random_normal({13, 8}, 2).to(dtype);
  const auto best = torch::mm(c.rows.hidden, c.lm_head.t()).argmax(1);
  c.rows.labels = torch::tensor({3, 0, 12, 5, 0, 7, 0}, torch::kLong);
  c.rows.labels[1] = best[1];
  c.rows.labels[4] = best[4];
  const auto wide = dtype == torch::kDouble ? torch::kDouble : torch::kFloat;
  c.rows.weights = torch::tensor({0.0, 1.0, 0.5, 0.25, 2.0, 0.0, 1.0}, wide);
  c.rows.teacher_states = random_normal({5, 8}, 3).to(dtype);
  c.rows.teacher_rows = torch::tensor({-1, 2, 0, 2, 4, -1, 2}, torch::kLong);
  c.rows.hidden.set_requires_grad(true);
  return c;
}

/// The definition of the header, one number at a time.
double loss_in_a_loop(const Case& c, const LossOptions& options) {
  const at::NoGradGuard no_grad;
  double total = 0;
  for (int64_t r = 0; r < c.rows.hidden.size(0); ++r) {
    const double weight = c.rows.weights[r].item<double>();
    if (weight == 0) continue;
    const auto softmax = [&](const Tensor& state) {
      std::vector<double> values;
      double sum = 0;
      for (int64_t v = 0; v < c.lm_head.size(0); ++v) {
        values.push_back(std::exp((state * c.lm_head[v]).sum().item<double>()));
        sum += values.back();
      }
      for (double& value : values)
        value /= sum;
      return values;
    };
    const auto q = softmax(c.rows.hidden[r]);
    const auto p = softmax(c.rows.teacher_states[c.rows.teacher_rows[r].item<int64_t>()]);
    const auto label = static_cast<size_t>(c.rows.labels[r].item<int64_t>());
    double kl = 0;
    double entropy = 0;
    for (size_t v = 0; v < q.size(); ++v) {
      kl += p[v] * std::log(p[v] / q[v]);
      entropy -= q[v] * std::log(q[v]);
    }
    const bool is_correct =
        std::max_element(q.begin(), q.end()) - q.begin() == static_cast<int64_t>(label);
    total += weight * (-std::log(q[label]) + options.kl_weight * kl +
                       options.cap_weight * (is_correct ? entropy : 0));
  }
  return total;
}

TEST(LmHeadLoss, EqualsTheReferenceFixtureInFloat64) {
  const auto file = golden("loss/expected.safetensors");
  const struct {
    const char* name;
    LossOptions options;
  } losses[] = {{"ce", {0, 0}}, {"kl", {1, 0}}, {"cap", {0, 1}}, {"all", {0.15, 0.1}}};
  for (const auto& [name, options] : losses) {
    for (const LossMethod method : kMethods) {
      SCOPED_TRACE(name);
      LossRows rows{
          file.tensor("hidden").clone().set_requires_grad(true), file.tensor("targets"),
          file.tensor("weights"), file.tensor("teacher_hidden"), torch::arange(9, torch::kLong)};
      const auto terms = run(method, rows, file.tensor("lm_head"), options);
      const auto is_used = (rows.weights > 0).to(torch::kDouble);
      // kl and cap stand alone in the fixture; here they always come with the cross-entropy.
      const bool is_alone = std::string(name) == "kl" || std::string(name) == "cap";
      const auto ce_terms = run(method, rows, file.tensor("lm_head"), {});
      auto per_row = terms.ce + options.kl_weight * terms.kl + options.cap_weight * terms.cap;
      auto loss_sum = terms.loss_sum.detach();
      auto gradient = gradient_of(terms, rows.hidden);
      if (is_alone) {
        per_row = per_row - ce_terms.ce;
        loss_sum = loss_sum - ce_terms.loss_sum.detach();
        gradient = gradient - gradient_of(ce_terms, rows.hidden);
      }
      const std::string prefix = std::string(name) + ".";
      const auto expected_rows = file.tensor(prefix + "per_position") * is_used;
      EXPECT_LE(max_difference(per_row, expected_rows), 1e-9);
      EXPECT_LE(max_difference(loss_sum / terms.weight_sum, file.tensor(prefix + "loss")[0]), 1e-9);
      EXPECT_LE(max_difference(gradient / terms.weight_sum, file.tensor(prefix + "dhidden")), 1e-9);
      EXPECT_GT(file.tensor(prefix + "dhidden").abs().max().item<double>(), 1e-3);
    }
  }
}

TEST(LmHeadLoss, EqualsALoopForEveryChunkSize) {
  const auto c = make_case();
  for (const LossOptions base : {LossOptions{0, 0}, {1, 0}, {0, 1}, {0.15, 0.1}}) {
    const double expected = loss_in_a_loop(c, base);
    const auto full = run(LossMethod::kFull, c.rows, c.lm_head, base);
    const auto full_gradient = gradient_of(full, c.rows.hidden, 0.5);
    EXPECT_NEAR(full.loss_sum.item<double>(), expected, 1e-12 * expected);
    for (const int64_t chunk_rows : {0, 1, 3, 7, 8}) {
      LossOptions options = base;
      options.chunk_rows = chunk_rows;
      for (const LossMethod method : {LossMethod::kFused, LossMethod::kRecompute}) {
        const auto terms = run(method, c.rows, c.lm_head, options);
        EXPECT_NEAR(terms.loss_sum.item<double>(), expected, 1e-12 * expected);
        EXPECT_EQ(terms.weight_sum.item<double>(), 4.75);
        EXPECT_LE(
            relative_difference(gradient_of(terms, c.rows.hidden, 0.5), full_gradient), 1e-12);
      }
    }
  }
}

TEST(LmHeadLoss, HasTheGradientOfCentralDifferences) {
  for (const LossMethod method : kMethods) {
    auto c = make_case();
    const LossOptions options{0.15, 0.1, 2};
    const auto analytic = gradient_of(run(method, c.rows, c.lm_head, options), c.rows.hidden);
    c.rows.hidden.set_requires_grad(false);
    const auto numeric = numeric_gradient(
        [&] { return run(method, c.rows, c.lm_head, options).loss_sum.item<double>(); },
        c.rows.hidden);
    EXPECT_LE(max_difference(analytic, numeric), 1e-7);
  }
}

TEST(LmHeadLoss, CountsConfidenceOnlyWhereTheArgmaxIsTheLabel) {
  const auto c = make_case();
  for (const LossMethod method : kMethods) {
    const auto cap = run(method, c.rows, c.lm_head, {0, 1}).cap;
    EXPECT_GT(cap[1].item<double>(), 0.1);
    EXPECT_GT(cap[4].item<double>(), 0.1);
    const auto best = torch::mm(c.rows.hidden, c.lm_head.t()).argmax(1).detach();
    const auto is_wrong = best.ne(c.rows.labels).logical_and(c.rows.weights > 0);
    ASSERT_TRUE(is_wrong.any().item<bool>());
    EXPECT_EQ(cap.masked_select(is_wrong).abs().max().item<double>(), 0);
  }
}

TEST(LmHeadLoss, PredictsTheLowestIdOnTies) {
  LossRows rows{torch::ones({2, 2}), torch::tensor({1, 2}, torch::kLong), torch::ones({2}), {}, {}};
  const auto lm_head = torch::tensor({0.0F, 0.0F, 1.0F, 1.0F, 1.0F, 1.0F}).view({3, 2});
  for (const LossMethod method : kMethods) {
    const auto terms = run(method, rows, lm_head, {0, 1});
    EXPECT_TRUE(terms.predicted.equal(torch::tensor({1, 1}, torch::kLong)));
    EXPECT_GT(terms.cap[0].item<double>(), 0);
    EXPECT_EQ(terms.cap[1].item<double>(), 0);
  }
}

TEST(LmHeadLoss, GivesZeroWeightRowsNothing) {
  auto c = make_case();
  c.rows.labels[0] = 99;  // outside the vocabulary, where nobody looks
  c.rows.labels[5] = -100;
  for (const LossMethod method : kMethods) {
    const auto terms = run(method, c.rows, c.lm_head, {0.15, 0.1});
    const auto gradient = gradient_of(terms, c.rows.hidden);
    for (const int64_t r : {0, 5}) {
      EXPECT_EQ(gradient[r].abs().max().item<double>(), 0);
      EXPECT_EQ(terms.ce[r].item<double>(), 0);
      EXPECT_EQ(terms.kl[r].item<double>(), 0);
      EXPECT_EQ(terms.cap[r].item<double>(), 0);
      EXPECT_EQ(terms.predicted[r].item<int64_t>(), -1);
    }
    EXPECT_GT(gradient[1].abs().max().item<double>(), 0);
  }
}

TEST(LmHeadLoss, IsZeroWithoutAnyWeight) {
  auto c = make_case();
  c.rows.weights.zero_();
  for (const LossMethod method : kMethods) {
    const auto terms = run(method, c.rows, c.lm_head, {0.15, 0.1});
    EXPECT_EQ(terms.loss_sum.item<double>(), 0);
    EXPECT_EQ(terms.weight_sum.item<double>(), 0);
    EXPECT_EQ(gradient_of(terms, c.rows.hidden).abs().max().item<double>(), 0);
  }
}

TEST(LmHeadLoss, HasNoDivergenceFromATeacherWithEqualLogits) {
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16}) {
    auto c = make_case(dtype);
    c.rows.teacher_states = c.rows.hidden.detach();
    c.rows.teacher_rows = torch::arange(7, torch::kLong);
    const auto kl = lm_head_loss(c.rows, c.lm_head, {1, 0}).kl;
    EXPECT_GE(kl.min().item<double>(), 0);
    EXPECT_LE(kl.max().item<double>(), 1e-6);
  }
}

TEST(LmHeadLoss, IsCloseToFloat64InBfloat16) {
  const auto half = make_case(torch::kBFloat16);
  Case exact = half;  // the same rounded numbers, in float64
  exact.rows.hidden = half.rows.hidden.detach().to(torch::kDouble).set_requires_grad(true);
  exact.rows.weights = half.rows.weights.to(torch::kDouble);
  exact.rows.teacher_states = half.rows.teacher_states.to(torch::kDouble);
  exact.lm_head = half.lm_head.to(torch::kDouble);
  const LossOptions options{0.15, 0, 3};
  const auto terms = lm_head_loss(half.rows, half.lm_head, options);
  EXPECT_EQ(terms.ce.scalar_type(), torch::kFloat);
  const auto wanted = lm_head_loss(exact.rows, exact.lm_head, options);
  // Logits below 16 in size round by at most 2^-5 in bfloat16, so each row's cross-entropy moves
  // by at most twice that.
  EXPECT_LE(torch::mm(exact.rows.hidden, exact.lm_head.t()).abs().max().item<double>(), 16);
  EXPECT_LE(max_difference(terms.ce, wanted.ce), std::exp2(-4));
  const auto gradient = gradient_of(terms, half.rows.hidden);
  EXPECT_EQ(gradient.scalar_type(), torch::kBFloat16);
  EXPECT_LE(relative_difference(gradient, gradient_of(wanted, exact.rows.hidden)), std::exp2(-4));
}

TEST(LmHeadLoss, ScalesTheGradientOfEachRowByItsOwnUpstream) {
  const auto c = make_case();
  const auto upstream = random_normal({7}, 9);
  const LossOptions options{0.15, 0.1, 3};
  const auto wanted = torch::autograd::grad(
      {run(LossMethod::kFull, c.rows, c.lm_head, options).row_loss}, {c.rows.hidden},
      {upstream})[0];
  for (const LossMethod method : {LossMethod::kFused, LossMethod::kRecompute}) {
    const auto gradient = torch::autograd::grad(
        {run(method, c.rows, c.lm_head, options).row_loss}, {c.rows.hidden}, {upstream})[0];
    EXPECT_LE(relative_difference(gradient, wanted), 1e-12);
  }
}

TEST(LmHeadLoss, GivesTheArgmaxOfTheTeacher) {
  const auto c = make_case();
  const auto best = torch::mm(c.rows.teacher_states, c.lm_head.t()).argmax(1);
  for (const LossMethod method : kMethods) {
    const auto predicted = run(method, c.rows, c.lm_head, {0.15, 0.1, 3}).teacher_predicted;
    for (const int64_t r : {1, 2, 3, 4, 6})
      EXPECT_TRUE(predicted[r].equal(best[c.rows.teacher_rows[r].item<int64_t>()]));
    EXPECT_EQ(predicted[0].item<int64_t>(), -1);
  }
}

TEST(LmHeadLoss, GivesTheBestIdsWithTheirLogProbabilities) {
  for (const auto dtype : {torch::kDouble, torch::kFloat}) {
    auto c = make_case(dtype);
    c.lm_head = random_normal({133, 8}, 2).to(dtype);
    c.lm_head[70].copy_(c.lm_head[9]);  // a tie in every row
    for (const int64_t top_k : {1, 5, 133}) {
      const auto wanted = run(LossMethod::kFull, c.rows, c.lm_head, {.top_k = top_k});
      for (const LossMethod method : {LossMethod::kFused, LossMethod::kRecompute}) {
        const auto terms = run(method, c.rows, c.lm_head, {.chunk_rows = 3, .top_k = top_k});
        EXPECT_TRUE(terms.top_ids.equal(wanted.top_ids));
        // Sums of 133 terms differ by their order.
        EXPECT_LE(
            max_difference(terms.top_log_probs, wanted.top_log_probs),
            dtype == torch::kDouble ? 1e-12 : 1e-4);
      }
    }
  }
}

TEST(LmHeadLoss, ComposesAChunkAsTheKernelsDo) {
  for (const bool has_teacher : {false, true}) {
    const auto c = make_case();
    const auto t = torch::mm(c.rows.teacher_states, c.lm_head.t());
    const auto teacher_rows = torch::tensor({1, 2, 0, 2, 4, 3, 2}, torch::kLong);
    auto z = torch::mm(c.rows.hidden.detach(), c.lm_head.t());
    if (has_teacher) z = z - t.index_select(0, teacher_rows);
    HeadChunk kernel{z.clone(), c.rows.labels, {}, {}, true};
    HeadChunk composed{z.clone(), c.rows.labels, {}, {}, true};
    for (HeadChunk* chunk : {&kernel, &composed}) {
      if (has_teacher) chunk->teacher_logits = t;
      if (has_teacher) chunk->teacher_rows = teacher_rows;
    }
    const LossOptions options{.kl_weight = has_teacher ? 0.15 : 0, .cap_weight = 0.1, .top_k = 3};
    const auto left = run_head_kernels(kernel, options);
    const auto right = run_head_composed(composed, options);
    EXPECT_LE(max_difference(kernel.logits, composed.logits), 1e-12);
    EXPECT_LE(max_difference(left.ce, right.ce), 1e-12);
    EXPECT_LE(max_difference(left.kl, right.kl), 1e-12);
    EXPECT_LE(max_difference(left.cap, right.cap), 1e-12);
    EXPECT_TRUE(left.predicted.equal(right.predicted));
    EXPECT_TRUE(left.top_ids.equal(right.top_ids));
  }
}

TEST(LmHeadLoss, MakesNoGraphWhereNoGradientIsWanted) {
  auto c = make_case();
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(lm_head_loss(c.rows, c.lm_head, {0.15, 0.1}).loss_sum.requires_grad());
}

}  // namespace
}  // namespace draftsmith::ops
