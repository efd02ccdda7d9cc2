// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/cuda/on_device.h"
#include "draftsmith/ops/head_chunk.h"
#include "draftsmith/ops/kernels.h"
#include "draftsmith/ops/storage.h"

namespace draftsmith::ops {

using torch::Tensor;

ChunkTerms run_head_kernels(const HeadChunk& chunk, const LossOptions& options) {
  const int64_t count = chunk.logits.size(0);
  const int64_t V = chunk.logits.size(1);
  const auto wide = chunk.logits.options().dtype(torch::kDouble);
  const auto ids = wide.dtype(torch::kLong);
  const auto values = torch::empty({4, count}, wide);
  ChunkTerms terms{
      .ce = values[0],
      .kl = values[1],
      .cap = values[2],
      .label_probability = values[3],
      .predicted = torch::empty({count}, ids),
      .teacher_predicted = {},
      .top_ids = torch::empty({count, options.top_k}, ids),
      .top_log_probs = torch::empty({count, options.top_k}, wide)};
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
    log_sum = torch::empty({distinct}, wide);
    argmax = torch::empty({distinct}, ids);
    params.teacher_logits = chunk.teacher_logits.const_data_ptr();
    params.teacher_rows = chunk.teacher_rows.const_data_ptr<int64_t>();
    params.teacher = {log_sum.data_ptr<double>(), argmax.data_ptr<int64_t>()};
    const TeacherRowsParams teacher{
        .storage = params.storage,
        .logits = params.teacher_logits,
        .rows = distinct,
        .vocab_size = V,
        .out = params.teacher};
    cuda::run_where(chunk.logits, teacher, compute_teacher_rows, cuda::compute_teacher_rows);
    terms.teacher_predicted = argmax.index_select(0, chunk.teacher_rows);
  }
  cuda::run_where(chunk.logits, params, compute_head_rows, cuda::compute_head_rows);
  return terms;
}

}  // namespace draftsmith::ops
