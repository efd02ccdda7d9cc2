// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "draftsmith/data/batch_source.h"
#include "draftsmith/model/target.h"
#include "draftsmith/pipeline/pipeline.h"

namespace draftsmith::pipeline {

/// Loads the batches of the source from `start` on; rank and ranks of it are not used.
LoadBatch make_loader(data::BatchSource source, const BatchRecipe& recipe, const FeedStart& start);

/// Runs the target, which must outlive it, as make_train_batch does. Workers on one device may
/// share a target.
TargetWorker make_target_worker(const model::Target& target, const BatchRecipe& recipe);

/// Hands the batches that come from `from` over to the device of their rank, one for each.
void hand_over_to(
    TargetWorker& worker,
    torch::Device from,
    const std::vector<torch::Device>& drafter_devices);

}  // namespace draftsmith::pipeline
