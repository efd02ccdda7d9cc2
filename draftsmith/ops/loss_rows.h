// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "draftsmith/ops/lm_head_loss.h"
#include "draftsmith/ops/row_stream.h"

namespace draftsmith::ops {

/// Checks rows, head and options against each other and returns the indices [R'] of the rows of
/// positive weight. Errors: ShapeError as `lm_head_loss` promises, but for values of `hidden`.
torch::Tensor find_supervised_rows(
    const LossRows& rows,
    const torch::Tensor& lm_head,
    const LossOptions& options);

/// Rows `index` of `hidden`, without gradient. Errors: ShapeError naming the first that is not
/// finite.
torch::Tensor take_finite_rows(const torch::Tensor& hidden, const torch::Tensor& index);

/// float64 for float64 input, else float32.
torch::ScalarType statistics_type(const torch::Tensor& hidden);

/// Terms with zeros for every row, and -1 for what is predicted.
LossTerms make_empty_terms(const LossRows& rows, const LossOptions& options);

/// ce + kl_weight kl + cap_weight cap.
torch::Tensor combine_terms(
    const torch::Tensor& ce,
    const torch::Tensor& kl,
    const torch::Tensor& cap,
    const LossOptions& options);

/// What a chunk computes: terms of its rows only.
struct ChunkTerms {
  torch::Tensor ce, kl, cap, label_probability;  // [r]
  torch::Tensor predicted, teacher_predicted;    // [r] int64
  torch::Tensor top_ids, top_log_probs;          // [r, top_k]
};

/// Puts the terms of the rows `index` in their places.
void put_terms(LossTerms& terms, const torch::Tensor& index, const ChunkTerms& chunk);

/// Supervised rows [begin, end) whose logits exist together, with those of the teacher rows that
/// they share.
struct LossChunk {
  int64_t begin, end;
  std::vector<int64_t> distinct;  // teacher rows, in order of first use
  std::vector<int64_t> inverse;   // [end - begin] place in `distinct`; empty without a teacher
};

/// Cuts `count` rows into chunks in which rows and distinct teacher rows together are at most
/// `capacity` (but at least one row). `teacher_rows` is [count], or null without a teacher.
std::vector<LossChunk>
plan_loss_chunks(const int64_t* teacher_rows, int64_t count, int64_t capacity);

/// The same number of chunks, but of about the same size: a small last one would be slow for its
/// rows.
std::vector<LossChunk>
plan_even_chunks(const int64_t* teacher_rows, int64_t count, int64_t capacity);

/// The definitions of lm_head_loss; each makes `row_loss`, with its gradient, and the other terms.
LossTerms fused_loss(
    const LossRows&,
    const torch::Tensor& lm_head,
    const LossOptions&,
    const MakeRowStream& make_row_stream);
LossTerms recomputed_loss(const LossRows&, const torch::Tensor& lm_head, const LossOptions&);
LossTerms full_loss(const LossRows&, const torch::Tensor& lm_head, const LossOptions&);

}  // namespace draftsmith::ops
