// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace draftsmith::ops {

struct TopK {
  torch::Tensor ids;        // [R, k] int64, best first; the smaller id on ties
  torch::Tensor log_probs;  // [R, k] fp32, of the softmax over the whole row
};

/// The k most probable ids of each row of logits with their log-probabilities,
///   log_probs = logits[ids] - log sum_v exp(logits[v]),
/// from one pass over the logits (a GPU takes two). The result is on the host, where trees are
/// made.
///
/// Gradient: none. Memory: up to 2 k + 1,024 candidates per thread.
/// Errors: ShapeError unless 1 <= k <= V and the logits are bf16 or fp32.
TopK top_k(
    const torch::Tensor& logits,  // [R, V] bf16|fp32, no NaN
    int64_t k);

}  // namespace draftsmith::ops
