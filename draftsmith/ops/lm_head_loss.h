// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <torch/types.h>

namespace draftsmith::ops {

/// The rows that a loss is taken over. Rows of weight 0 cost nothing and may hold any label.
struct LossRows {
  torch::Tensor hidden;          // [R, D], gradient flows to it
  torch::Tensor labels;          // [R] int64, 0 <= label < V where weight > 0
  torch::Tensor weights;         // [R] fp32 (fp64 with fp64 hidden), finite, >= 0
  torch::Tensor teacher_states;  // [M, D] as hidden, or undefined without a teacher
  torch::Tensor teacher_rows;    // [R] int64, row of teacher_states where weight > 0
};

struct LossOptions {
  double kl_weight = 0;    // of KL(teacher || student); needs teacher_states
  double cap_weight = 0;   // of the entropy of rows whose argmax is the label
  int64_t chunk_rows = 0;  // rows per chunk; 0 = all in one chunk
};

/// Sums over rows, so that chunks, micro-steps and devices combine with `+`; and values per row
/// (0 where the weight is 0). Statistics are float32, or float64 for float64 input.
struct LossTerms {
  torch::Tensor loss_sum;    // [] sum of weight (ce + kl_weight kl + cap_weight cap); has gradient
  torch::Tensor weight_sum;  // []
  torch::Tensor ce;          // [R] -log q(label)
  torch::Tensor kl;          // [R] KL(p || q), never negative; 0 without a teacher
  torch::Tensor cap;         // [R] entropy of q where the argmax is the label, else 0
  torch::Tensor predicted;   // [R] int64 argmax of the student (lowest id on ties), -1 if weight 0
  torch::Tensor label_probability;  // [R] q(label)
};

/// Weighted cross-entropy, distillation and confidence of draft hidden states under the target's
/// frozen lm_head, with q = softmax(hidden lm_head^T), p = softmax(teacher lm_head^T):
///   loss_sum = sum_r weight_r (-log q_r(label_r) + kl_weight KL(p_r || q_r)
///                              + cap_weight [argmax q_r = label_r] H(q_r))
///
/// The gradient with respect to `hidden` is computed while a chunk's logits exist, so that
/// nothing is recomputed in backward and the logits of all rows never exist together. A chunk's
/// teacher logits are computed once per distinct teacher row: neighbouring blocks share them.
///
/// With a teacher the student's GEMM is (hidden - teacher) lm_head^T: in bfloat16 the rounding of
/// the teacher's logits then cancels in q - p, which is small where the two nearly agree.
///
/// Gradient: to `hidden` only. Memory: two [chunk_rows, V] arrays of the dtype of `hidden`.
/// Errors: ShapeError if rows, dtypes or devices disagree, if a weight is negative or not finite,
/// or if a row of positive weight has a label outside the vocabulary or a hidden state that is
/// not finite.
/// Source: the gradients of docs/notation.md, "Losses".
LossTerms lm_head_loss(
    const LossRows& rows,
    const torch::Tensor& lm_head,  // [V, D] as hidden, frozen
    const LossOptions& options);

/// The same on whole logits through plain autograd: the definition that tests compare with.
/// Memory: all [R, V] logits several times.
LossTerms
lm_head_loss_full(const LossRows& rows, const torch::Tensor& lm_head, const LossOptions& options);

}  // namespace draftsmith::ops
