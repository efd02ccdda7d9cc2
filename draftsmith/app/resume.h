// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "draftsmith/train/checkpoint.h"

namespace draftsmith::app {

/// Compares what a checkpoint was made of with what goes on from it. Settings that do not touch
/// the weights pass; another path to the same dataset or target passes and is said. Errors:
/// ConfigError naming the first other difference whose key is not in `allow_change`.
void check_resumed(
    const train::RunStamp& saved,
    const train::RunStamp& now,
    const std::vector<std::string>& allow_change);

/// More steps than planned are announced, for they stretch the schedule. Errors: ConfigError for
/// fewer, unless `allow_change` has train.max_steps or train.epochs.
void check_resumed_steps(
    int64_t saved_total,
    int64_t now_total,
    const std::vector<std::string>& allow_change);

}  // namespace draftsmith::app
