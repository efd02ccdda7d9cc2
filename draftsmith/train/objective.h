// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include "draftsmith/data/draft_blocks.h"
#include "draftsmith/ops/lm_head_loss.h"
#include "draftsmith/train/settings.h"

namespace draftsmith::train {

/// The loss of a batch: CE + kl_weight KL + cap_weight CAP over all supervised slots, as sums.
/// Row r = (b N + n) K + k. Gradient: to `hidden`.
ops::LossTerms compute_objective(
    const torch::Tensor& hidden,          // [B, N K, D]
    const torch::Tensor& lm_head,         // [V, D] as hidden
    const torch::Tensor& teacher_states,  // [B, S, D] as hidden; may be undefined
    const data::DraftBlocks& blocks,
    const LossSettings& settings);

}  // namespace draftsmith::train
