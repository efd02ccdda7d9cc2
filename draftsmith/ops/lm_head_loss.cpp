// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/lm_head_loss.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include <torch/csrc/autograd/custom_function.h>

#include "draftsmith/base/error.h"
#include "draftsmith/ops/head_chunk.h"
#include "draftsmith/ops/kernels.h"
#include "draftsmith/ops/loss_rows.h"
#include "draftsmith/ops/storage.h"

namespace draftsmith::ops {
namespace {

using torch::Tensor;

constexpr int64_t kBackwardRows = 2048;  // scaled at a time
constexpr int64_t kShiftWords = 256;     // words looked at for the size of a row's logits

/// The value `row_loss` with the ready gradient `dhidden` of the rows `index` towards `hidden`.
struct ReadyGradient : torch::autograd::Function<ReadyGradient> {
  static Tensor forward(
      torch::autograd::AutogradContext* context,
      const Tensor& hidden,
      const Tensor& row_loss,
      const Tensor& index,
      const Tensor& dhidden) {
    context->save_for_backward({index, dhidden});
    context->saved_data["rows"] = hidden.size(0);
    return row_loss.clone();
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list upstream) {
    const auto saved = context->get_saved_variables();
    const auto& index = saved[0];
    const auto& dhidden = saved[1];
    const auto scale = upstream[0].index_select(0, index).unsqueeze(1);
    auto gradient =
        torch::zeros({context->saved_data["rows"].toInt(), dhidden.size(1)}, dhidden.options());
    for (int64_t first = 0; first < index.size(0); first += kBackwardRows) {
      const int64_t count = std::min(kBackwardRows, index.size(0) - first);
      const auto scaled = dhidden.narrow(0, first, count) * scale.narrow(0, first, count);
      gradient.index_copy_(0, index.narrow(0, first, count), scaled.to(dhidden.scalar_type()));
    }
    return {gradient, Tensor(), Tensor(), Tensor()};
  }
};

/// The array that the logits of every chunk go through.
Tensor make_logits_buffer(const std::vector<LossChunk>& chunks, const Tensor& lm_head) {
  int64_t most = 0;
  for (const auto& chunk : chunks)
    most = std::max(most, chunk.end - chunk.begin + static_cast<int64_t>(chunk.distinct.size()));
  const int64_t V = lm_head.size(0);
  try {
    return torch::empty({most, V}, lm_head.options());
  } catch (const std::exception&) {
    throw DeviceError(
        {.what = "memory for the logits of a chunk",
         .expected =
             fmt::format("{} bytes for {} rows of {}", most * V * lm_head.element_size(), most, V),
         .got = "none so large",
         .where = "lm_head_loss",
         .hint = "a smaller --loss.chunk_rows"});
  }
}

Tensor as_indices(const std::vector<int64_t>& values, const Tensor& like) {
  return torch::tensor(values, torch::kLong).to(like.device());
}

/// Minus the logit that the likely words of each row lie around: a constant per row that softmax
/// does not see, and that lets bfloat16 round finely where the probability is. The largest logit
/// is not known before the product; that of the chunk's own labels is near it.
/// `teacher` [m, D] and `student` [r, D] give shifts of t and of z - t; without a teacher of z.
Tensor find_shifts(
    const Tensor& teacher,
    const Tensor& student,
    const Tensor& teacher_rows,
    const Tensor& labels,
    const Tensor& lm_head) {
  const auto words = std::get<0>(at::_unique2(labels)).slice(0, 0, kShiftWords);
  const auto head = lm_head.index_select(0, words).t();
  const auto [best, place] = torch::mm(student, head).max(1, /*keepdim=*/true);
  if (!teacher.defined()) return best.neg();
  const auto teacher_logits = torch::mm(teacher, head);
  const auto shift = best - teacher_logits.index_select(0, teacher_rows).gather(1, place);
  return torch::cat({teacher_logits.amax(1, /*keepdim=*/true), shift}).neg();
}

/// Terms of the supervised rows of one chunk; their gradient goes to its rows of `dhidden`.
ChunkTerms run_chunk(
    const LossRows& rows,
    const LossChunk& plan,
    const Tensor& supervised,
    const Tensor& lm_head,
    const LossOptions& options,
    const Tensor& buffer,
    const Tensor& dhidden) {
  const int64_t count = plan.end - plan.begin;
  const auto distinct = static_cast<int64_t>(plan.distinct.size());
  const auto index = supervised.narrow(0, plan.begin, count);
  auto states = take_finite_rows(rows.hidden, index);
  Tensor teacher;  // [distinct, D]
  HeadChunk chunk{
      .logits = buffer.narrow(0, distinct, count),
      .labels = rows.labels.index_select(0, index),
      .teacher_logits = {},
      .teacher_rows = {},
      .needs_gradient = dhidden.defined()};
  if (distinct > 0) {
    teacher = rows.teacher_states.detach().index_select(0, as_indices(plan.distinct, lm_head));
    chunk.teacher_rows = as_indices(plan.inverse, lm_head);
    chunk.teacher_logits = buffer.narrow(0, 0, distinct);
  }
  Tensor shifts;
  if (lm_head.scalar_type() == torch::kBFloat16)
    shifts = find_shifts(teacher, states, chunk.teacher_rows, chunk.labels, lm_head);
  if (distinct > 0)
    states = torch::cat({teacher, states.sub_(teacher.index_select(0, chunk.teacher_rows))});
  // One GEMM for the teacher's logits t and the student's z - t.
  auto logits = buffer.narrow(0, 0, distinct + count);
  if (shifts.defined()) {
    at::addmm_out(logits, shifts.expand_as(logits), states, lm_head.t());
  } else {
    at::mm_out(logits, states, lm_head.t());
  }
  const auto terms =
      lm_head.is_cpu() ? run_head_kernels(chunk, options) : run_head_composed(chunk, options);
  if (dhidden.defined()) {
    auto out = dhidden.narrow(0, plan.begin, count);
    at::mm_out(out, chunk.logits, lm_head);
  }
  return terms;
}

}  // namespace

ChunkTerms run_head_kernels(const HeadChunk& chunk, const LossOptions& options) {
  const int64_t count = chunk.logits.size(0);
  const int64_t V = chunk.logits.size(1);
  const auto values = torch::empty({4, count}, torch::kDouble);
  ChunkTerms terms{
      .ce = values[0],
      .kl = values[1],
      .cap = values[2],
      .label_probability = values[3],
      .predicted = torch::empty({count}, torch::kLong),
      .teacher_predicted = {},
      .top_ids = torch::empty({count, options.top_k}, torch::kLong),
      .top_log_probs = torch::empty({count, options.top_k}, torch::kDouble)};
  HeadRowsParams params{
      .storage = storage_of(chunk.logits),
      .logits = chunk.logits.data_ptr(),
      .rows = count,
      .vocab_size = V,
      .labels = chunk.labels.const_data_ptr<int64_t>(),
      .kl_weight = options.kl_weight,
      .cap_weight = options.cap_weight,
      .needs_gradient = chunk.needs_gradient,
      .top_k = options.top_k,
      .ce = terms.ce.data_ptr<double>(),
      .kl = terms.kl.data_ptr<double>(),
      .cap = terms.cap.data_ptr<double>(),
      .label_probability = terms.label_probability.data_ptr<double>(),
      .predicted = terms.predicted.data_ptr<int64_t>(),
      .top_ids = terms.top_ids.data_ptr<int64_t>(),
      .top_log_probs = terms.top_log_probs.data_ptr<double>()};
  Tensor log_sum, argmax;
  if (chunk.teacher_logits.defined()) {
    const int64_t distinct = chunk.teacher_logits.size(0);
    log_sum = torch::empty({distinct}, torch::kDouble);
    argmax = torch::empty({distinct}, torch::kLong);
    params.teacher_logits = chunk.teacher_logits.const_data_ptr();
    params.teacher_rows = chunk.teacher_rows.const_data_ptr<int64_t>();
    params.teacher = {log_sum.data_ptr<double>(), argmax.data_ptr<int64_t>()};
    compute_teacher_rows(
        {.storage = params.storage,
         .logits = params.teacher_logits,
         .rows = distinct,
         .vocab_size = V,
         .out = params.teacher});
    terms.teacher_predicted = argmax.index_select(0, chunk.teacher_rows);
  }
  compute_head_rows(params);
  return terms;
}

LossTerms fused_loss(const LossRows& rows, const Tensor& lm_head, const LossOptions& options) {
  const auto supervised = find_supervised_rows(rows, lm_head, options);
  const bool needs_gradient = rows.hidden.requires_grad() && at::GradMode::is_enabled();
  LossTerms terms = make_empty_terms(rows, options);
  Tensor dhidden;  // of the supervised rows
  {
    const at::NoGradGuard no_grad;
    const int64_t count = supervised.size(0);
    Tensor teacher_rows;
    if (rows.teacher_states.defined())
      teacher_rows = rows.teacher_rows.index_select(0, supervised).cpu();
    const auto chunks = plan_even_chunks(
        teacher_rows.defined() ? teacher_rows.const_data_ptr<int64_t>() : nullptr, count,
        options.chunk_rows > 0 ? options.chunk_rows : 2 * count);
    if (needs_gradient) dhidden = torch::empty({count, rows.hidden.size(1)}, lm_head.options());
    const auto buffer = make_logits_buffer(chunks, lm_head);
    for (const auto& chunk : chunks) {
      const auto values = run_chunk(rows, chunk, supervised, lm_head, options, buffer, dhidden);
      put_terms(terms, supervised.narrow(0, chunk.begin, chunk.end - chunk.begin), values);
    }
    terms.row_loss = combine_terms(terms.ce, terms.kl, terms.cap, options);
  }
  if (needs_gradient)
    terms.row_loss = ReadyGradient::apply(rows.hidden, terms.row_loss, supervised, dhidden);
  return terms;
}

}  // namespace draftsmith::ops
