// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "draftsmith/data/batch_source.h"
#include "draftsmith/model/target.h"
#include "draftsmith/pipeline/pipeline.h"

namespace draftsmith::pipeline {

/// Loads the batches of the source from `start` on; rank and ranks of it are not used.
LoadBatch make_loader(data::BatchSource source, const BatchRecipe& recipe, const FeedStart& start);

/// Runs the target, which must outlive it, as make_train_batch does. Workers on one device may
/// share a target. With `drafter_devices`, one for each rank, batches are handed over to them.
TargetWorker make_target_worker(
    const model::Target& target,
    const BatchRecipe& recipe,
    const std::vector<torch::Device>& drafter_devices = {});

}  // namespace draftsmith::pipeline
