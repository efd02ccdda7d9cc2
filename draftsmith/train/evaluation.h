// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include <torch/types.h>

#include "draftsmith/data/batch_source.h"
#include "draftsmith/model/drafter.h"
#include "draftsmith/pipeline/ranks.h"
#include "draftsmith/pipeline/train_batch.h"
#include "draftsmith/train/metrics.h"
#include "draftsmith/train/settings.h"

namespace draftsmith::train {

/// Makes of a batch what a step needs: pipeline::make_train_batch with a target.
using BatchMaker = std::function<pipeline::TrainBatch(data::SourceBatch batch)>;

/// Loss, accuracy and teacher-forced acceptance over every batch of `held_out`, always with the
/// same anchors. Changes nothing: there is no random state, and no gradient is made.
/// Ranks share the batches out between them, and all get the sums of all. Blocks attend as `plan`
/// says; without gradients that takes less memory than in a step.
MetricSums evaluate_held_out(
    const BatchMaker& make_batch,
    const model::Drafter& drafter,
    const torch::Tensor& lm_head,  // [V, D] in the drafter's dtype
    data::BatchSource& held_out,
    const LossSettings& loss,
    const model::ForwardPlan& plan = {},
    int64_t tree_budget = 0,  // as in run_micro_step
    const pipeline::Ranks& ranks = {});

}  // namespace draftsmith::train
