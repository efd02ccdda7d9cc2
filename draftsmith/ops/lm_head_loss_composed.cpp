// SPDX-License-Identifier: Apache-2.0
// The loss by libtorch operations: on whole logits, in recomputed chunks, and for one chunk.
#include <algorithm>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "draftsmith/ops/head_chunk.h"
#include "draftsmith/ops/loss_rows.h"

namespace draftsmith::ops {
namespace {

using torch::Tensor;

/// Terms of rows with logits `z` [r, V] of the statistics type, with gradient to them; `t` [r, V]
/// are the teacher's, or undefined.
ChunkTerms
compose_terms(const Tensor& z, const Tensor& t, const Tensor& labels, const LossOptions& options) {
  const auto log_q = torch::log_softmax(z, -1);
  ChunkTerms terms;
  terms.ce = log_q.gather(1, labels.unsqueeze(1)).squeeze(1).neg();
  terms.label_probability = terms.ce.detach().neg().exp();
  terms.predicted = z.detach().argmax(1);  // the first, so the lowest id, on ties
  terms.cap = (log_q.exp() * log_q).sum(1).neg().masked_fill(terms.predicted.ne(labels), 0);
  if (t.defined()) {
    const auto log_p = torch::log_softmax(t, -1);
    const auto kl = (log_p.exp() * (log_p - log_q)).sum(1);
    terms.kl = kl + kl.detach().neg().clamp_min(0);  // never negative; the gradient stays
    terms.teacher_predicted = t.argmax(1);
  } else {
    terms.kl = torch::zeros_like(terms.ce);
  }
  if (options.top_k > 0) {
    const auto ids = std::get<1>(z.detach().sort(/*stable=*/true, -1, /*descending=*/true));
    terms.top_ids = ids.narrow(1, 0, options.top_k);
    terms.top_log_probs = log_q.detach().gather(1, terms.top_ids);
  }
  return terms;
}

/// Terms of the rows `index` from their states. A static function of tensors, so that forward and
/// backward of the recomputing scheme run exactly the same thing.
ChunkTerms run_states(
    const Tensor& hidden,          // [r, D]
    const Tensor& teacher_states,  // [M, D] or undefined
    const Tensor& teacher_rows,    // [r]
    const Tensor& labels,          // [r]
    const Tensor& lm_head,         // [V, D]
    const LossOptions& options) {
  const auto type = statistics_type(hidden);
  Tensor teacher_logits;
  if (teacher_states.defined()) {
    const at::NoGradGuard no_grad;
    teacher_logits = torch::mm(teacher_states.index_select(0, teacher_rows), lm_head.t()).to(type);
  }
  return compose_terms(torch::mm(hidden, lm_head.t()).to(type), teacher_logits, labels, options);
}

Tensor sum_of(const ChunkTerms& terms, const LossOptions& options) {
  return combine_terms(terms.ce, terms.kl, terms.cap, options);
}

Tensor select_defined(const Tensor& tensor, const Tensor& index) {
  return tensor.defined() ? tensor.index_select(0, index) : tensor;
}

/// `row_loss` whose backward computes the logits of each chunk again.
struct RecomputedLoss : torch::autograd::Function<RecomputedLoss> {
  static Tensor forward(
      torch::autograd::AutogradContext* context,
      const Tensor& hidden,
      const Tensor& lm_head,
      const Tensor& row_loss,
      const Tensor& index,
      const LossRows& rows,
      const LossOptions& options) {
    context->save_for_backward(
        {hidden, lm_head, index, rows.labels, rows.teacher_states, rows.teacher_rows});
    context->saved_data["kl_weight"] = options.kl_weight;
    context->saved_data["cap_weight"] = options.cap_weight;
    context->saved_data["chunk_rows"] = options.chunk_rows;
    return row_loss.clone();
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list upstream) {
    const auto saved = context->get_saved_variables();
    const auto &hidden = saved[0], &lm_head = saved[1], &index = saved[2], &labels = saved[3];
    const LossOptions options{
        .kl_weight = context->saved_data["kl_weight"].toDouble(),
        .cap_weight = context->saved_data["cap_weight"].toDouble()};
    const int64_t step = context->saved_data["chunk_rows"].toInt();
    auto gradient = torch::zeros_like(hidden);
    for (int64_t first = 0; first < index.size(0); first += step) {
      const auto some = index.narrow(0, first, std::min(step, index.size(0) - first));
      const at::AutoGradMode with_grad(true);
      const auto chunk = hidden.detach().index_select(0, some).set_requires_grad(true);
      const auto terms = run_states(
          chunk, saved[4], select_defined(saved[5], some), labels.index_select(0, some), lm_head,
          options);
      gradient.index_copy_(
          0, some,
          torch::autograd::grad(
              {sum_of(terms, options)}, {chunk}, {upstream[0].index_select(0, some)})[0]);
    }
    return {gradient, Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

ChunkTerms run_head_composed(const HeadChunk& chunk, const LossOptions& options) {
  const auto type = statistics_type(chunk.logits);
  const at::AutoGradMode grad_mode(chunk.needs_gradient);
  auto z = chunk.logits.to(type);
  Tensor t;
  if (chunk.teacher_logits.defined()) {
    t = chunk.teacher_logits.to(type).index_select(0, chunk.teacher_rows);
    z = z + t;
  }
  z = z.detach().set_requires_grad(chunk.needs_gradient);
  const auto terms = compose_terms(z, t, chunk.labels, options);
  if (chunk.needs_gradient)
    chunk.logits.copy_(torch::autograd::grad({sum_of(terms, options).sum()}, {z})[0]);
  return terms;
}

LossTerms recomputed_loss(const LossRows& rows, const Tensor& lm_head, const LossOptions& options) {
  const auto index = find_supervised_rows(rows, lm_head, options);
  LossTerms terms = make_empty_terms(rows, options);
  LossOptions chunked = options;
  if (chunked.chunk_rows == 0) chunked.chunk_rows = kRecomputedRows;
  const int64_t step = chunked.chunk_rows;
  {
    const at::NoGradGuard no_grad;
    for (int64_t first = 0; first < index.size(0); first += step) {
      const auto some = index.narrow(0, first, std::min(step, index.size(0) - first));
      put_terms(
          terms, some,
          run_states(
              take_finite_rows(rows.hidden, some), rows.teacher_states,
              select_defined(rows.teacher_rows, some), rows.labels.index_select(0, some), lm_head,
              options));
    }
    terms.row_loss = combine_terms(terms.ce, terms.kl, terms.cap, options);
  }
  if (rows.hidden.requires_grad() && at::GradMode::is_enabled())
    terms.row_loss =
        RecomputedLoss::apply(rows.hidden, lm_head, terms.row_loss, index, rows, chunked);
  return terms;
}

LossTerms full_loss(const LossRows& rows, const Tensor& lm_head, const LossOptions& options) {
  const auto index = find_supervised_rows(rows, lm_head, options);
  take_finite_rows(rows.hidden, index);
  const auto chunk = run_states(
      rows.hidden.index_select(0, index), rows.teacher_states,
      select_defined(rows.teacher_rows, index), rows.labels.index_select(0, index), lm_head,
      options);
  LossTerms terms = make_empty_terms(rows, options);
  put_terms(terms, index, chunk);
  terms.row_loss = terms.row_loss.index_put({index}, sum_of(chunk, options));
  return terms;
}

}  // namespace draftsmith::ops
