// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

namespace draftsmith::train {

/// Records what the steps of a run spend their time on, for train.profile_steps: the stages of a
/// step (memory::Stage), libtorch's operations within them, and kernels where there is a GPU, as
/// the JSON that Perfetto and chrome://tracing open. All threads of the process are seen: those
/// that read batches and run the target ahead, and other drafters. One trace at a time.
class StepTrace {
 public:
  /// Records from here on; with 0 steps it does nothing at all.
  StepTrace(std::filesystem::path file, int64_t steps);
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;
  /// A run that ends before its last recorded step leaves what there is.
  ~StepTrace();

  /// To be called after every step; after the last one the file is there.
  void end_step();

 private:
  void write();

  std::filesystem::path file_;
  int64_t steps_left_;
};

}  // namespace draftsmith::train
