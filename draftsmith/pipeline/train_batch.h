// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include <torch/types.h>

#include "draftsmith/data/batch_source.h"
#include "draftsmith/model/target.h"
#include "draftsmith/pipeline/work_clock.h"

namespace c10 {
struct Event;
}

namespace draftsmith::pipeline {

/// Seconds that a batch took to make.
struct BatchTimes {
  double data = 0;    // reading, making blocks
  double target = 0;  // the target's forward
  /// Of the target, since its last batch, if that is in another process.
  std::optional<WorkTime> elsewhere = {};
};

/// All that a training step of the drafter needs of one batch. The sequences of a batch from
/// `make_train_batch` stand one after the other in a single row: B = 1 below (data::join_rows).
struct TrainBatch {
  data::TokenBatch tokens;
  data::DraftBlocks blocks;
  torch::Tensor embedded;        // [B, N K, D] target embeddings of the block ids
  torch::Tensor features;        // [B, S, F]
  torch::Tensor teacher_states;  // [B, S, D] after the target's final norm
  int64_t source = 0;            // which dataset of data.path it comes from
  data::DataCursor at;           // of this batch
  data::DataCursor next;         // the cursor after it
  int64_t number = 0;            // of this batch in the run, counted along the cursor
  BatchTimes times;
  std::shared_ptr<c10::Event> ready = {};  // of tensors that are still on their way to a device
};

/// Runs the target over a batch of sequences side by side, or takes its stored features, and joins
/// them.
TrainBatch make_train_batch(
    const model::Target& target,
    data::SourceBatch batch,
    const std::vector<int64_t>& target_layer_ids,
    torch::ScalarType drafter_dtype);

/// The same from states [B, S, ..] that somebody has already; of the target only the embedding is
/// used.
TrainBatch join_train_batch(
    const model::Target& target,
    data::SourceBatch batch,
    const model::TargetStates& states,
    torch::ScalarType drafter_dtype);

}  // namespace draftsmith::pipeline
