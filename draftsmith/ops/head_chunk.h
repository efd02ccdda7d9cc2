// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "draftsmith/ops/loss_rows.h"

namespace draftsmith::ops {

/// The logits of a chunk, and what its rows are.
struct HeadChunk {
  torch::Tensor logits;          // [r, V] z, or z - t with a teacher; becomes the gradient
  torch::Tensor labels;          // [r] int64
  torch::Tensor teacher_logits;  // [m, V] t of the distinct teacher rows, or undefined
  torch::Tensor teacher_rows;    // [r] int64, row of teacher_logits
  bool needs_gradient;           // of row_loss, into `logits`
};

/// Terms and gradient of a chunk by kernels (ops/kernels.h). float32 sums of short stretches,
/// double beyond.
ChunkTerms run_head_kernels(const HeadChunk& chunk, const LossOptions& options);

/// The same by libtorch operations, for more best ids than the kernels of a GPU give. Memory: a few
/// float32 arrays [r, V].
ChunkTerms run_head_composed(const HeadChunk& chunk, const LossOptions& options);

}  // namespace draftsmith::ops
