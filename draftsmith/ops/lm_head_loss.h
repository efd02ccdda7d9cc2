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

/// How the logits are computed.
enum class LossMethod {
  kFused,      // in chunks, with the gradient while a chunk's logits exist: nothing recomputed
  kRecompute,  // in chunks that backward computes again: a baseline, and the least memory
  kFull,       // all at once through plain autograd: the definition that tests compare with
};

struct LossOptions {
  double kl_weight = 0;    // of KL(teacher || student); needs teacher_states
  double cap_weight = 0;   // of the entropy of rows whose argmax is the label
  int64_t chunk_rows = 0;  // rows of logits, the teacher's included, that exist together; 0 = all
                           // (kRecompute: student rows; 0 = 2,048)
  int64_t top_k = 0;       // best ids that are given for each row, at most V
  LossMethod method = LossMethod::kFused;
};

/// Values per row (0 where the weight is 0; ids -1), and their weighted sums, which combine over
/// chunks, micro-steps and devices with `+`. Statistics are float32, or float64 for float64 input.
struct LossTerms {
  torch::Tensor row_loss;           // [R] ce + kl_weight kl + cap_weight cap; has gradient
  torch::Tensor weights;            // [R] of the rows in the sums
  torch::Tensor loss_sum;           // [] sum of weight x row_loss; has gradient
  torch::Tensor weight_sum;         // []
  torch::Tensor ce;                 // [R] -log q(label)
  torch::Tensor kl;                 // [R] KL(p || q), never negative; 0 without a teacher
  torch::Tensor cap;                // [R] entropy of q where the argmax is the label, else 0
  torch::Tensor label_probability;  // [R] q(label)
  torch::Tensor predicted;          // [R] int64 argmax of the student, lowest id on ties
  torch::Tensor teacher_predicted;  // [R] int64 argmax of the teacher, -1 without one
  torch::Tensor top_ids;            // [R, top_k] int64 best ids of the student, best first
  torch::Tensor top_log_probs;      // [R, top_k] their log q
};

/// Student rows at a time of kRecompute, unless told otherwise.
inline constexpr int64_t kRecomputedRows = 2048;

/// Rows of logits at a time that are fast and take some 256 MiB: products are fastest at whole
/// multiples of 512 rows, and no faster with more memory.
int64_t default_chunk_rows(int64_t vocab_size, int64_t element_bytes);

/// Weighted cross-entropy, distillation and confidence of draft hidden states under the target's
/// frozen lm_head, with q = softmax(hidden lm_head^T), p = softmax(teacher lm_head^T):
///   loss_sum = sum_r weight_r (-log q_r(label_r) + kl_weight KL(p_r || q_r)
///                              + cap_weight [argmax q_r = label_r] H(q_r))
///
/// kFused computes the gradient with respect to `hidden` while a chunk's logits exist, so that
/// nothing is recomputed in backward and the logits of all rows never exist together. It is the
/// gradient of `row_loss`, which backward multiplies by each row's upstream gradient: weights that
/// depend on the result cost no second pass. A chunk's teacher logits are computed once per
/// distinct teacher row: neighbouring blocks share them.
/// With a teacher the student's GEMM is (hidden - teacher) lm_head^T: in bfloat16 the rounding of
/// the teacher's logits then cancels in q - p, which is small where the two nearly agree.
///
/// Gradient: to `hidden` only, once or several times.
/// Memory: kFused one array [chunk_rows, V] of the dtype of `hidden` (on a GPU two of half the
/// rows, so that a chunk's products and another's sums run at once), and the gradient of the
/// supervised rows; kRecompute some eight float32 arrays [chunk_rows, V] while it runs, and nothing
/// of its own between forward and backward; kFull all [R, V] logits several times.
/// Errors: ShapeError if rows, dtypes or devices disagree, if a weight is negative or not finite,
/// or if a row of positive weight has a label outside the vocabulary or a hidden state that is
/// not finite; DeviceError if there is no memory for a chunk.
/// Source: the gradients of docs/notation.md, "Losses".
LossTerms lm_head_loss(
    const LossRows& rows,
    const torch::Tensor& lm_head,  // [V, D] as hidden, frozen
    const LossOptions& options);

}  // namespace draftsmith::ops
