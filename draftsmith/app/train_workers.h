// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "draftsmith/app/run_config.h"
#include "draftsmith/app/seats.h"
#include "draftsmith/data/batch_source.h"
#include "draftsmith/memory/planner.h"
#include "draftsmith/model/target.h"
#include "draftsmith/train/trainer.h"

namespace draftsmith::app {

/// What all drafters of this process train with.
struct TrainJob {
  const Seats& seats;
  const RunConfig& config;
  /// Of each target worker, at least one; in a split run its embedding and head. The first one is
  /// that of evaluations.
  std::vector<std::shared_ptr<const model::Target>> targets;
  const model::Drafter& drafter;  // with its first weights; the first one trains these tensors
  data::BatchSource source;
  std::optional<data::BatchSource> held_out;
  memory::MemoryPlan plan;
  train::LossSettings loss;
  train::RunStamp stamp;
  std::optional<std::filesystem::path> checkpoint;  // to go on from
  std::vector<std::string> allow_change;
  std::string settings;  // text of settings.toml, written anew by a run that goes on
};

struct TrainOutcome {
  bool is_done = false;
  int64_t step = 0;
  int64_t total_steps = 0;
};

/// Trains the drafters of this process, each in a thread if there are several, fed by threads that
/// run the target ahead, here or elsewhere.
/// Errors: the first one of any thread.
TrainOutcome run_drafters(TrainJob job);

/// Runs the target for the drafters of other processes until they are done.
void run_targets(const Seats& seats, const RunConfig& config);

}  // namespace draftsmith::app
