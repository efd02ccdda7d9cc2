// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include <torch/types.h>

#include "draftsmith/memory/planner.h"

namespace draftsmith::memory {

/// The phases of a run as planned and as measured, and the parts of the plan's peak. `measured`
/// are the peaks of memory::Stage's names; those of phases that did not run yet are missing.
std::string compare_with_plan(
    const MemoryPlan& plan,
    const std::map<std::string, int64_t>& measured,
    int64_t measured_peak);

/// Runs `body`, which trains as planned on `device`. Where memory runs out all the same, the log
/// says what was planned and what was measured.
/// Errors: those of `body`; OutOfMemory, naming the phase, for an allocation that fails on a GPU.
void run_by_plan(const MemoryPlan& plan, torch::Device device, const std::function<void()>& body);

}  // namespace draftsmith::memory
