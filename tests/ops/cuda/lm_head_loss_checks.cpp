// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>

#include "draftsmith/ops/storage.h"

#include "tests/ops/cuda/kernel_place.h"
#include "tests/support/random_tensor.h"

namespace draftsmith::testing {
namespace {

using torch::Tensor;

struct Case {
  Tensor logits;   // [r, V] z, or z - t
  Tensor teacher;  // [m, V] or undefined
  Tensor labels;   // [r]
  Tensor teacher_rows;
  double kl_weight = 0.4;
  double cap_weight = 0.3;
  int64_t top_k = 0;
  bool needs_gradient = true;
};

/// What the kernels write.
struct Result {
  Tensor values;  // [4, r] ce, kl, cap, label probability
  Tensor predicted, teacher_predicted, teacher_log_sum;
  Tensor top_ids, top_log_probs;
  Tensor logits;  // the gradient, if wanted
};

Result run(KernelPlace& place, const Case& c) {
  const auto put = [&](const Tensor& tensor) {
    return tensor.defined() ? tensor.to(place.device()).clone() : tensor;
  };
  const auto labels = put(c.labels), teacher = put(c.teacher), teacher_rows = put(c.teacher_rows);
  const int64_t r = c.logits.size(0), V = c.logits.size(1);
  const auto wide = torch::TensorOptions(torch::kDouble).device(place.device());
  const auto ids = wide.dtype(torch::kLong);
  Result result{
      .values = torch::full({4, r}, -1.0, wide),
      .predicted = torch::full({r}, -1, ids),
      .teacher_predicted = {},
      .teacher_log_sum = {},
      .top_ids = torch::full({r, c.top_k}, -1, ids),
      .top_log_probs = torch::full({r, c.top_k}, 1.0, wide),
      .logits = put(c.logits)};
  double* values = result.values.data_ptr<double>();
  ops::HeadRowsParams params{
      .storage = ops::storage_of(c.logits),
      .logits = result.logits.data_ptr(),
      .rows = r,
      .vocab_size = V,
      .labels = labels.const_data_ptr<int64_t>(),
      .kl_weight = c.kl_weight,
      .cap_weight = c.cap_weight,
      .needs_gradient = c.needs_gradient,
      .top_k = c.top_k,
      .ce = values,
      .kl = values + r,
      .cap = values + 2 * r,
      .label_probability = values + 3 * r,
      .predicted = result.predicted.data_ptr<int64_t>(),
      .top_ids = result.top_ids.data_ptr<int64_t>(),
      .top_log_probs = result.top_log_probs.data_ptr<double>()};
  if (teacher.defined()) {
    result.teacher_log_sum = torch::full({teacher.size(0)}, -1.0, wide);
    result.teacher_predicted = torch::full({teacher.size(0)}, -1, ids);
    params.teacher_logits = teacher.const_data_ptr();
    params.teacher_rows = teacher_rows.const_data_ptr<int64_t>();
    params.teacher = {
        result.teacher_log_sum.data_ptr<double>(), result.teacher_predicted.data_ptr<int64_t>()};
    place.run(ops::TeacherRowsParams{
        params.storage, params.teacher_logits, teacher.size(0), V, params.teacher});
  }
  place.run(params);
  return result;
}

/// Labels at both ends, in the middle and at the student's best; `spread` is the size of z - t.
Case make_case(int64_t V, torch::ScalarType dtype, bool has_teacher, double spread = 0.5) {
  constexpr int64_t r = 4;
  Case c;
  auto z = 3 * random_normal({r, V}, 1);
  c.labels = torch::tensor({int64_t{0}, V - 1, V / 2, int64_t{0}}, torch::kLong);
  if (has_teacher) {
    c.teacher = (3 * random_normal({3, V}, 2)).to(dtype);
    c.teacher_rows = torch::tensor({2, 0, 0, 1}, torch::kLong);
    const auto difference = (spread * random_normal({r, V}, 3)).to(dtype);
    z = difference.to(torch::kDouble) +
        c.teacher.to(torch::kDouble).index_select(0, c.teacher_rows);
    c.logits = difference;
  } else {
    c.logits = z.to(dtype);
    z = c.logits.to(torch::kDouble);
  }
  c.labels[3] = z[3].argmax();
  return c;
}

void require_equal_results(KernelPlace& place, const Case& c, const std::string& what) {
  CpuPlace cpu;
  const auto got = run(place, c);
  const auto wanted = run(cpu, c);
  const auto dtype = c.logits.scalar_type();
  // Statistics: float32 sums whatever the storage. The hardware's exp loses some |x| 2^-24.
  const double precision = dtype == torch::kDouble ? 1e-12 : 2e-5;
  require_close(got.values, wanted.values, precision, precision, what + " terms");
  require_same(got.predicted, wanted.predicted, what + " predicted");
  require_same(got.top_ids, wanted.top_ids, what + " top ids");
  require_close(got.top_log_probs, wanted.top_log_probs, precision, precision, what + " top log q");
  if (c.teacher.defined()) {
    require_same(got.teacher_predicted, wanted.teacher_predicted, what + " teacher's best");
    require_close(
        got.teacher_log_sum, wanted.teacher_log_sum, precision, precision, what + " teacher's sum");
  }
  // Where q and p nearly cancel, what is left is as exact as they are, not as itself.
  require_close(
      got.logits, wanted.logits, rounding_of(dtype), c.needs_gradient ? precision : 0,
      what + " gradient");
}

constexpr torch::ScalarType kDtypes[] = {torch::kBFloat16, torch::kFloat, torch::kDouble};

void check_terms_and_gradient(KernelPlace& place) {
  for (const auto dtype : kDtypes) {
    for (const bool has_teacher : {false, true}) {
      for (const int64_t V : {1, 301, 304, 4504}) {  // with and without 16-byte rows
        auto c = make_case(V, dtype, has_teacher);
        require_equal_results(
            place, c, fmt::format("{} V={} teacher={}", c10::toString(dtype), V, has_teacher));
      }
    }
  }
}

void check_agreeing_and_opposed_teachers(KernelPlace& place) {
  // Nearly the same logits: KL is some 1e-7. Far apart: exp(z - t) overflows.
  for (const double spread : {0.0, 1e-3, 60.0})
    require_equal_results(
        place, make_case(1000, torch::kFloat, true, spread), fmt::format("spread {}", spread));
  const auto same = run(place, make_case(1000, torch::kBFloat16, true, 0));
  require_close(same.values[1], torch::zeros({4}), 0, 1e-6, "KL of equal rows");
}

void check_ties(KernelPlace& place) {
  for (const bool has_teacher : {false, true}) {
    for (const int64_t top_k : {0, 1, 300}) {
      auto c = make_case(4504, torch::kBFloat16, has_teacher);
      // Few distinct values, so that all places compete with equals in other threads.
      const auto levels = [](const Tensor& t) { return (t * 0.5).round().clamp(-2, 2); };
      c.logits = levels(c.logits);
      if (has_teacher) c.teacher = levels(c.teacher);
      c.top_k = top_k;
      require_equal_results(place, c, fmt::format("top_k={} teacher={}", top_k, has_teacher));
    }
  }
}

void check_top_of_every_storage(KernelPlace& place) {
  for (const auto dtype : kDtypes) {
    auto c = make_case(304, dtype, true);
    c.top_k = 5;
    require_equal_results(place, c, c10::toString(dtype));
  }
}

void check_rows_without_numbers(KernelPlace& place) {
  for (const auto dtype : kDtypes)
    for (const double value : {std::nan(""), -HUGE_VAL}) {
      auto c = make_case(304, dtype, false);
      c.logits.fill_(value);
      c.top_k = 1;
      const auto what = fmt::format("{} {}", c10::toString(dtype), value);
      const auto got = run(place, c);
      require_same(got.predicted, torch::zeros_like(got.predicted), what + " predicted");
      require_same(got.top_ids, torch::zeros_like(got.top_ids), what + " top ids");
    }
}

void check_logits_stay_without_gradient(KernelPlace& place) {
  auto c = make_case(304, torch::kBFloat16, true);
  c.needs_gradient = false;
  require_equal_results(place, c, "no gradient");
  require_same(run(place, c).logits, c.logits, "logits");
}

void check_long_rows(KernelPlace& place) {
  // Threads take their sums in several stretches.
  constexpr int64_t V = 1200 << 10;
  const auto steps = torch::arange(V, torch::kDouble);
  Case c;
  c.logits = (0.5 * (steps * 0.37).sin()).to(torch::kBFloat16).unsqueeze(0);
  c.teacher = (3 * (steps * 0.11).cos()).to(torch::kBFloat16).unsqueeze(0);
  c.labels = torch::tensor({V - 1}, torch::kLong);
  c.teacher_rows = torch::tensor({0}, torch::kLong);
  require_equal_results(place, c, fmt::format("V={}", V));
}

}  // namespace

std::vector<KernelCheck> lm_head_loss_checks() {
  return {
      {"LmHeadLossHasTermsAndGradientOfTheCpu", check_terms_and_gradient},
      {"LmHeadLossKeepsItsDigitsNearAndFarFromTheTeacher", check_agreeing_and_opposed_teachers},
      {"LmHeadLossTakesTheLowestIdOnTies", check_ties},
      {"LmHeadLossGivesTheBestIdsOfEveryStorage", check_top_of_every_storage},
      {"LmHeadLossNamesAnIdWhereNoLogitIsANumber", check_rows_without_numbers},
      {"LmHeadLossLeavesLogitsWithoutGradient", check_logits_stay_without_gradient},
      {"LmHeadLossSumsLongRows", check_long_rows}};
}

}  // namespace draftsmith::testing
