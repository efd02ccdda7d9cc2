// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <future>

#include "draftsmith/train/checkpoint.h"

namespace draftsmith::train {

/// Saves checkpoints of a run while training goes on: `save` copies the state, a thread writes it.
/// Memory: one copy of weights, masters and moments while a save is under way.
class CheckpointWriter {
 public:
  CheckpointWriter(std::filesystem::path run_folder, int64_t keep_last);
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  /// Waits. An error that nobody asked for is logged.
  ~CheckpointWriter();

  /// Waits for the save before this one, copies `state` and begins to write it. Afterwards
  /// `checkpoints/best` points to it if its own step is the best, and old ones are removed.
  /// Errors: those of the save before it.
  void save(const TrainState& state);

  /// Rethrows the error of a save that has failed in the meantime; never waits.
  void check();

  /// Waits for the save under way. Errors: DeviceError if it failed.
  void wait();

 private:
  std::filesystem::path run_folder_;
  int64_t keep_last_;
  std::future<void> pending_;
};

}  // namespace draftsmith::train
