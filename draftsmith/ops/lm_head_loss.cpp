// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/lm_head_loss.h"

#include <algorithm>
#include <vector>

#include <torch/csrc/autograd/custom_function.h>

#include "draftsmith/ops/kernels.h"
#include "draftsmith/ops/loss_rows.h"
#include "draftsmith/ops/storage.h"

namespace draftsmith::ops {
namespace {

using torch::Tensor;

/// The value `loss_sum` with the ready gradient `dhidden` towards `hidden`.
struct ReadyGradient : torch::autograd::Function<ReadyGradient> {
  static Tensor forward(
      torch::autograd::AutogradContext* context,
      const Tensor& /*hidden*/,
      const Tensor& loss_sum,
      const Tensor& dhidden) {
    context->save_for_backward({dhidden});
    return loss_sum.clone();
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list upstream) {
    const auto dhidden = context->get_saved_variables()[0];
    return {dhidden * upstream[0].to(dhidden.scalar_type()), Tensor(), Tensor()};
  }
};

/// Buffers that all chunks share, so that memory does not grow with the rows.
struct ChunkBuffers {
  Tensor student;  // [chunk, V] logits, then their gradient
  Tensor teacher;  // [chunk, V] logits of the distinct teacher rows
};

/// A view of the first `rows` rows of a buffer, made on first use.
Tensor take_rows(Tensor& buffer, int64_t rows, int64_t capacity, const Tensor& lm_head) {
  if (!buffer.defined()) buffer = torch::empty({capacity, lm_head.size(0)}, lm_head.options());
  return buffer.narrow(0, 0, rows);
}

/// What a chunk knows of its teacher rows.
struct TeacherChunk {
  Tensor states;   // [r, D] teacher state of each row
  Tensor logits;   // [m, V] of the distinct rows
  Tensor inverse;  // [r] row of `logits`
  std::vector<double> log_sum;
  std::vector<int64_t> argmax;
};

TeacherChunk run_teacher(
    const LossRows& rows,
    const Tensor& index,
    const Tensor& lm_head,
    int64_t capacity,
    ChunkBuffers& buffers) {
  TeacherChunk chunk;
  const auto wanted = rows.teacher_rows.index_select(0, index);
  const auto [distinct, inverse, counts] = at::_unique2(wanted, /*sorted=*/true, true);
  const auto distinct_states = rows.teacher_states.detach().index_select(0, distinct);
  chunk.inverse = inverse.contiguous();
  chunk.states = distinct_states.index_select(0, inverse);
  chunk.logits = take_rows(buffers.teacher, distinct.size(0), capacity, lm_head);
  at::mm_out(chunk.logits, distinct_states, lm_head.t());
  chunk.log_sum.resize(static_cast<size_t>(distinct.size(0)));
  chunk.argmax.resize(chunk.log_sum.size());
  compute_teacher_rows(
      {.storage = storage_of(lm_head),
       .logits = chunk.logits.const_data_ptr(),
       .rows = distinct.size(0),
       .vocab_size = lm_head.size(0),
       .out = {chunk.log_sum.data(), chunk.argmax.data()}});
  return chunk;
}

/// Columns of doubles that a chunk's kernel fills, one per term.
struct ChunkTerms {
  explicit ChunkTerms(int64_t rows)
      : values(torch::empty({4, rows}, torch::kDouble)),
        predicted(torch::empty({rows}, torch::kLong)) {}
  double* column(int64_t i) { return values.data_ptr<double>() + i * values.size(1); }

  Tensor values;     // [4, r]: ce, kl, cap, label probability
  Tensor predicted;  // [r]
};

void put_terms(LossTerms& terms, const Tensor& index, const ChunkTerms& chunk) {
  Tensor* const columns[] = {&terms.ce, &terms.kl, &terms.cap, &terms.label_probability};
  for (int64_t i = 0; i < 4; ++i)
    columns[i]->index_copy_(0, index, chunk.values[i].to(columns[i]->scalar_type()));
  terms.predicted.index_copy_(0, index, chunk.predicted);
}

/// Terms of the rows `index`, and their gradient into `dhidden` if that is defined.
void run_chunk(
    const LossRows& rows,
    const Tensor& index,
    const Tensor& lm_head,
    const LossOptions& options,
    int64_t capacity,
    ChunkBuffers& buffers,
    LossTerms& terms,
    const Tensor& dhidden) {
  const int64_t count = index.size(0);
  auto hidden = rows.hidden.index_select(0, index);
  TeacherChunk teacher;
  const bool has_teacher = rows.teacher_states.defined();
  if (has_teacher) {
    teacher = run_teacher(rows, index, lm_head, capacity, buffers);
    hidden = hidden - teacher.states;  // the GEMM then gives z - t; see HeadRowsParams
  }
  auto logits = take_rows(buffers.student, count, capacity, lm_head);
  at::mm_out(logits, hidden, lm_head.t());

  const auto labels = rows.labels.index_select(0, index);
  const auto weights = rows.weights.index_select(0, index).to(torch::kDouble);
  ChunkTerms chunk(count);
  HeadRowsParams params{
      .storage = storage_of(lm_head),
      .logits = logits.data_ptr(),
      .rows = count,
      .vocab_size = lm_head.size(0),
      .labels = labels.const_data_ptr<int64_t>(),
      .weights = weights.const_data_ptr<double>(),
      .kl_weight = options.kl_weight,
      .cap_weight = options.cap_weight,
      .needs_gradient = dhidden.defined(),
      .ce = chunk.column(0),
      .kl = chunk.column(1),
      .cap = chunk.column(2),
      .label_probability = chunk.column(3),
      .predicted = chunk.predicted.data_ptr<int64_t>()};
  if (has_teacher) {
    params.teacher_logits = teacher.logits.const_data_ptr();
    params.teacher_rows = teacher.inverse.const_data_ptr<int64_t>();
    params.teacher = {teacher.log_sum.data(), teacher.argmax.data()};
  }
  compute_head_rows(params);
  put_terms(terms, index, chunk);
  if (dhidden.defined()) dhidden.index_copy_(0, index, torch::mm(logits, lm_head));
}

}  // namespace

LossTerms lm_head_loss(const LossRows& rows, const Tensor& lm_head, const LossOptions& options) {
  const auto supervised = find_supervised_rows(rows, lm_head, options);
  const bool needs_gradient = rows.hidden.requires_grad() && at::GradMode::is_enabled();
  LossTerms terms = make_empty_terms(rows);
  Tensor dhidden;
  {
    const at::NoGradGuard no_grad;
    if (needs_gradient) dhidden = torch::zeros_like(rows.hidden);
    const int64_t count = supervised.size(0);
    const int64_t step =
        std::min(options.chunk_rows > 0 ? options.chunk_rows : count, std::max<int64_t>(count, 1));
    ChunkBuffers buffers;
    for (int64_t first = 0; first < count; first += step) {
      const auto index = supervised.narrow(0, first, std::min(step, count - first));
      run_chunk(rows, index, lm_head, options, step, buffers, terms, dhidden);
    }
    terms.loss_sum = sum_terms(terms, rows.weights, options);
  }
  if (needs_gradient) terms.loss_sum = ReadyGradient::apply(rows.hidden, terms.loss_sum, dhidden);
  return terms;
}

}  // namespace draftsmith::ops
