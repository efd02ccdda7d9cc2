// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/loss_rows.h"

#include <fmt/format.h>

#include "draftsmith/base/error.h"
#include "draftsmith/ops/checks.h"

namespace draftsmith::ops {

using torch::Tensor;

namespace {

/// Errors: ShapeError naming the first row where `is_right` is false.
void check_all(
    const Tensor& is_right,
    const Tensor& row_ids,
    const char* what,
    const char* expected) {
  const auto wrong = is_right.logical_not().nonzero();
  if (wrong.size(0) == 0) return;
  const int64_t row = row_ids[wrong[0][0].item<int64_t>()].item<int64_t>();
  throw ShapeError(
      {.what = what, .expected = expected, .got = fmt::format("another value in row {}", row)});
}

}  // namespace

torch::ScalarType statistics_type(const Tensor& hidden) {
  return hidden.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
}

Tensor
find_supervised_rows(const LossRows& rows, const Tensor& lm_head, const LossOptions& options) {
  const auto [R, D] = dims<2>(rows.hidden, "hidden");
  const auto [V, Dh] = dims<2>(lm_head, "lm_head");
  check_shape(lm_head, {V, D}, "lm_head");
  check_same_kind(lm_head, rows.hidden, "lm_head", "hidden");
  check_shape(rows.labels, {R}, "labels");
  check_shape(rows.weights, {R}, "weights");
  const auto all = torch::arange(R, rows.labels.options());
  check_all(
      rows.weights.isfinite().logical_and(rows.weights >= 0), all, "weights", "finite and >= 0");

  const auto index = rows.weights.gt(0).nonzero().squeeze(1);
  const auto labels = rows.labels.index_select(0, index);
  check_all(labels.ge(0).logical_and(labels < V), index, "labels", "an id of the vocabulary");
  check_all(
      rows.hidden.detach().index_select(0, index).isfinite().all(1), index, "hidden",
      "finite hidden states");
  if (rows.teacher_states.defined()) {
    const auto [M, Dt] = dims<2>(rows.teacher_states, "teacher_states");
    check_shape(rows.teacher_states, {M, D}, "teacher_states");
    check_same_kind(rows.teacher_states, rows.hidden, "teacher_states", "hidden");
    check_shape(rows.teacher_rows, {R}, "teacher_rows");
    const auto teachers = rows.teacher_rows.index_select(0, index);
    check_all(
        teachers.ge(0).logical_and(teachers < M), index, "teacher_rows", "a row of teacher_states");
  } else if (options.kl_weight != 0) {
    throw ShapeError(
        {.what = "teacher_states",
         .expected = "the teacher's states, since loss.kl_weight is not 0",
         .got = "none",
         .hint = "--loss.kl_weight=0"});
  }
  return index;
}

LossTerms make_empty_terms(const LossRows& rows) {
  const int64_t R = rows.hidden.size(0);
  const auto wide = rows.hidden.options().requires_grad(false).dtype(statistics_type(rows.hidden));
  LossTerms terms;
  terms.weight_sum = rows.weights.to(wide.dtype()).sum();
  terms.ce = torch::zeros({R}, wide);
  terms.kl = torch::zeros({R}, wide);
  terms.cap = torch::zeros({R}, wide);
  terms.label_probability = torch::zeros({R}, wide);
  terms.predicted = torch::full({R}, -1, rows.labels.options());
  return terms;
}

Tensor sum_terms(const LossTerms& terms, const Tensor& weights, const LossOptions& options) {
  const auto per_row = terms.ce + options.kl_weight * terms.kl + options.cap_weight * terms.cap;
  return (weights.to(per_row.scalar_type()) * per_row).sum();
}

}  // namespace draftsmith::ops
