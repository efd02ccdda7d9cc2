// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include "draftsmith/data/draft_blocks.h"
#include "draftsmith/ops/lm_head_loss.h"
#include "draftsmith/train/settings.h"

namespace draftsmith::train {

/// "fused", "recompute" or "full" (settings allow nothing else).
ops::LossMethod parse_loss_method(const std::string& name);

/// The options of the head's operation; chunks hold 256 MiB of logits unless the settings say
/// otherwise.
ops::LossOptions
loss_options(const LossSettings& settings, int64_t vocab_size, int64_t element_bytes);

/// D-PACE's weight of each slot, 0 where unsupervised. With s_k = (1 - alpha) q(label) + alpha
/// (1 where unsupervised) and P_k = s_0 ... s_k: the value sum_{j >= k} P_j over supervised j
/// (dpace), P_k (cumulative-confidence-only), or value / P_k (continuation-value-only). With
/// alpha = 0 the value is the derivative of the expected accepted length by log q_k.
torch::Tensor dpace_weights(
    const torch::Tensor& label_probability,  // [B, N, K]
    const torch::Tensor& is_supervised,      // [B, N, K] bool
    const LossSettings& loss);

/// The loss of a batch: CE + kl_weight KL + cap_weight CAP over all supervised slots, as sums.
/// Row r = (b N + n) K + k. The weight sum is that of the weights; with D-PACE it is B.
/// Gradient: to `hidden`.
ops::LossTerms compute_objective(
    const torch::Tensor& hidden,          // [B, N K, D]
    const torch::Tensor& lm_head,         // [V, D] as hidden
    const torch::Tensor& teacher_states,  // [B, S, D] as hidden; may be undefined
    const data::DraftBlocks& blocks,
    const LossSettings& settings,
    int64_t top_k = 0);  // best ids to give for each row; at most V

}  // namespace draftsmith::train
