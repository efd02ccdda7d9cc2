// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/lm_head_loss.h"
#include "draftsmith/ops/loss_rows.h"

namespace draftsmith::ops {

using torch::Tensor;

LossTerms
lm_head_loss_full(const LossRows& rows, const Tensor& lm_head, const LossOptions& options) {
  const auto index = find_supervised_rows(rows, lm_head, options);
  const auto type = statistics_type(rows.hidden);
  const auto log_softmax = [&](const Tensor& states) {
    return torch::log_softmax(torch::mm(states, lm_head.t()).to(type), -1);
  };
  const auto labels = rows.labels.index_select(0, index);
  const auto log_q = log_softmax(rows.hidden.index_select(0, index));
  const auto ce = log_q.gather(1, labels.unsqueeze(1)).squeeze(1).neg();
  const auto predicted = log_q.argmax(1);  // the first, so the lowest id, on ties
  const auto cap = (log_q.exp() * log_q).sum(1).neg().masked_fill(predicted.ne(labels), 0);
  auto kl = torch::zeros_like(ce);
  if (rows.teacher_states.defined()) {
    const auto log_p = log_softmax(
        rows.teacher_states.detach().index_select(0, rows.teacher_rows.index_select(0, index)));
    kl = (log_p.exp() * (log_p - log_q)).sum(1);
  }

  LossTerms terms = make_empty_terms(rows);
  terms.ce.index_copy_(0, index, ce.detach());
  terms.kl.index_copy_(0, index, kl.detach().clamp_min(0));
  terms.cap.index_copy_(0, index, cap.detach());
  terms.predicted.index_copy_(0, index, predicted);
  terms.label_probability.index_copy_(0, index, ce.detach().neg().exp());
  const auto per_row = ce + options.kl_weight * kl + options.cap_weight * cap;
  terms.loss_sum = (rows.weights.index_select(0, index).to(type) * per_row).sum();
  return terms;
}

}  // namespace draftsmith::ops
