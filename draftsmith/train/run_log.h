// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "draftsmith/formats/event_file.h"
#include "draftsmith/pipeline/batch_feed.h"
#include "draftsmith/train/metrics.h"

namespace draftsmith::train {

/// One line of a run's metrics.
struct LoggedSteps {
  int64_t step = 0;                        // the last one
  int64_t steps = 0;                       // since the line before
  double seconds = 0;                      // since the line before
  MetricSums sums;                         // of these steps
  std::vector<MetricSums> by_source = {};  // the same for each dataset of a mixture
  double lr = 0;                           // of the last step, as the next
  double gradient_norm = 0;
  int64_t peak_bytes = 0;                     // of tensors on the drafter's device
  std::vector<pipeline::WorkerTime> workers;  // that make batches and take them, of all ranks
  std::optional<MetricSums> evaluation;       // on held out sequences, after the last step
};

/// What a run writes down while it goes: metrics.jsonl, one object per line, and the same figures
/// as a TensorBoard event file.
class RunLog {
 public:
  /// Drops what an earlier process wrote down after `step`, from where the run goes on: those
  /// steps come again. Errors: DeviceError.
  RunLog(std::filesystem::path run_folder, int64_t step);

  /// Errors: DeviceError if the disk refuses.
  void write(const LoggedSteps& line);

 private:
  std::filesystem::path run_folder_;
  formats::EventFile events_;
};

}  // namespace draftsmith::train
