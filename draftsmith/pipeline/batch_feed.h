// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "draftsmith/data/batch_source.h"
#include "draftsmith/model/target.h"
#include "draftsmith/pipeline/batch_shapes.h"
#include "draftsmith/pipeline/train_batch.h"
#include "draftsmith/pipeline/work_clock.h"

namespace draftsmith::pipeline {

/// What batches are made of for a drafter.
struct BatchRecipe {
  data::BlockRule rule;
  std::vector<int64_t> target_layer_ids;
  torch::ScalarType drafter_dtype = torch::kFloat;
  BatchShapes shapes = {};
  torch::Device drafter_device = torch::kCPU;
};

/// Runs the target over a batch, or takes its stored features, and pads what comes of it.
TrainBatch
make_train_batch(const model::Target& target, data::SourceBatch batch, const BatchRecipe& recipe);

/// Where a feed begins, and whose it is. The batches of a run are numbered 0, 1, 2, .. along the
/// cursor, from one epoch to the next. Rank r of `ranks` drafters gets, in order, the numbers g
/// with g % ranks == r.
struct FeedStart {
  data::DataCursor cursor = {};  // of batch `number`
  int64_t number = 0;            // the first one that nobody has consumed
  int64_t rank = 0;
  int64_t ranks = 1;

  /// The first number of the rank.
  int64_t first_number() const { return number + ((rank - number) % ranks + ranks) % ranks; }
};

struct WorkerTime {
  std::string worker;  // "loader", "target 0", "drafter 0"
  WorkTime time;
};

/// Training batches of one drafter, without end: epoch follows epoch. Errors: of whatever made
/// them, in the thread that asks for the next one.
class BatchFeed {
 public:
  virtual ~BatchFeed() = default;

  /// The next batch of this rank; nothing once the feed was closed.
  virtual std::optional<TrainBatch> next() = 0;

  /// Says that the drafter does something else until it asks again: that is neither work on a
  /// batch nor waiting for one.
  virtual void rest() {}

  /// Say that the drafter is done with its batches of a step and gives gradients to the others,
  /// and that it goes on with the sums.
  virtual void begin_meeting() {}
  virtual void end_meeting() {}

  /// What every worker that this feed answers for did since the last call. Of the feeds of one
  /// process only the first answers.
  virtual std::vector<WorkerTime> take_times() { return {}; }
};

/// Reads and runs the target in the thread that asks; only reading goes on in the background.
class InlineFeed final : public BatchFeed {
 public:
  /// `target` must outlive it.
  InlineFeed(
      const model::Target& target,
      data::BatchSource source,
      BatchRecipe recipe,
      const FeedStart& start);

  std::optional<TrainBatch> next() override;

 private:
  const model::Target& target_;
  data::BatchSource source_;
  BatchRecipe recipe_;
  data::DataCursor cursor_;  // of batch `number_`
  int64_t number_;
  int64_t ranks_;
};

}  // namespace draftsmith::pipeline
