// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include "draftsmith/data/batch_source.h"
#include "draftsmith/model/drafter.h"
#include "draftsmith/model/target.h"
#include "draftsmith/train/metrics.h"
#include "draftsmith/train/settings.h"

namespace draftsmith::train {

/// Loss, accuracy and teacher-forced acceptance over every batch of `held_out`, always with the
/// same anchors. Changes nothing: there is no random state, and no gradient is made.
MetricSums evaluate_held_out(
    const model::Target& target,
    const model::Drafter& drafter,
    const torch::Tensor& lm_head,  // [V, D] in the drafter's dtype
    data::BatchSource& held_out,
    const LossSettings& loss,
    int64_t tree_budget = 0);  // as in run_micro_step

}  // namespace draftsmith::train
