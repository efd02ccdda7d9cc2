// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "draftsmith/data/settings.h"
#include "draftsmith/data/token_batch.h"
#include "draftsmith/model/target.h"

namespace draftsmith::pipeline {

/// The target for a dataset: with stored features only its embedding and head are loaded.
/// Errors: as Target::load and FeatureStore; DataError if the features are of another target or
/// of other layers.
model::Target open_target(
    const model::TargetSettings& settings,
    const std::filesystem::path& dataset,
    const std::vector<int64_t>& layer_ids);

/// One for each of the devices, with the settings but for those; devices of the same name share one.
/// Errors: as open_target.
std::vector<std::shared_ptr<const model::Target>> open_targets(
    const model::TargetSettings& settings,
    const std::vector<std::string>& devices,
    const std::function<model::Target(const model::TargetSettings&)>& open);

/// `data.max_length` lowered, with a line in the log, to the positions that the target was made for.
data::DataSettings fit_positions(data::DataSettings settings, const formats::TargetConfig& target);

/// Features and last states [B, S, ..] of a batch: stored ones where there are, else by a forward.
/// Packed documents run as if each were alone.
model::TargetStates find_target_states(
    const model::Target& target,
    const data::TokenBatch& tokens,
    const std::vector<int64_t>& layer_ids);

}  // namespace draftsmith::pipeline
