// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include <torch/types.h>

#include "draftsmith/model/drafter.h"
#include "draftsmith/pipeline/train_batch.h"
#include "draftsmith/train/metrics.h"
#include "draftsmith/train/settings.h"
#include "draftsmith/train/step_graphs.h"

namespace draftsmith::train {

struct MicroStep {
  MetricSums sums;
  std::vector<torch::Tensor> gradients;  // of the loss sum, in the order of the parameters
  torch::Tensor hidden;                  // [B, N K, D], detached
};

/// Takes the gradient of a parameter, by its number, as soon as backward has finished it; before
/// those of parameters that stand nearer to the input. A parameter without one is left out.
using GradientSink = std::function<void(size_t parameter, const torch::Tensor& gradient)>;

/// Forward and backward of one batch. The gradients are those of the weighted sum, not of a mean:
/// the caller divides by the weight sum of all micro-steps and ranks.
/// Without `needs_gradients` only the sums and hidden states are made. Hidden states that are not
/// finite give a loss that is not, and no gradients.
/// With a `tree_budget` the sums also hold the expected tokens of trees of this size.
/// With a `sink` the gradients go there and are not kept; they are the same bits. With `graphs`,
/// made for this drafter and plan, its forward and backward are replayed where gradients are needed;
/// results are then good until the next call.
MicroStep run_micro_step(
    const model::Drafter& drafter,
    const torch::Tensor& lm_head,  // [V, D] in the drafter's dtype
    const pipeline::TrainBatch& batch,
    const LossSettings& loss,
    bool needs_gradients = true,
    const model::ForwardPlan& plan = {},
    int64_t tree_budget = 0,
    const GradientSink& sink = {},
    StepGraphs* graphs = nullptr);

}  // namespace draftsmith::train
