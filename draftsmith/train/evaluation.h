// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>

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

struct EvaluationOptions {
  model::ForwardPlan plan = {};  // how blocks attend; without gradients that takes less memory
  int64_t tree_budget = 0;       // as in run_micro_step
  std::function<bool()> should_stop = {};  // asked before every batch; empty: never
};

/// Loss, accuracy and teacher-forced acceptance over every batch of `held_out`, always with the
/// same anchors. Changes nothing: there is no random state, and no gradient is made.
/// Ranks share the batches out between them, and all get the sums of all, or none once any of them
/// should stop.
std::optional<MetricSums> evaluate_held_out(
    const BatchMaker& make_batch,
    const model::Drafter& drafter,
    const torch::Tensor& lm_head,  // [V, D] in the drafter's dtype
    data::BatchSource& held_out,
    const LossSettings& loss,
    const EvaluationOptions& options = {},
    const pipeline::Ranks& ranks = {});

}  // namespace draftsmith::train
