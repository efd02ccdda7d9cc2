// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "draftsmith/app/run_config.h"
#include "draftsmith/memory/planner.h"

namespace draftsmith::app {

/// The shape of a run's steps from its settings: the largest batch that they allow.
memory::StepShape make_step_shape(
    const RunConfig& config,
    const formats::DrafterConfig& drafter,
    const formats::TargetConfig& target);

}  // namespace draftsmith::app
