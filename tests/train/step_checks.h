// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <torch/types.h>

#include "draftsmith/ops/recording.h"

namespace draftsmith::testing {

/// Where steps are checked.
struct StepPlace {
  torch::Device device;
  std::function<std::unique_ptr<ops::Recorder>()> make_recorder;
};

/// A training step on a device, against the CPU or without what makes it fast. Like the checks of
/// kernels they run in the ordinary tests too, on the CPU, and without GoogleTest.
struct StepCheck {
  const char* name;  // a sentence
  void (*run)(const StepPlace& place);
};

std::vector<StepCheck> step_checks();

}  // namespace draftsmith::testing
