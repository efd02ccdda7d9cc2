// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include "draftsmith/model/drafter.h"
#include "draftsmith/model/target.h"

namespace draftsmith::model {

/// The config of the drafter that `drafter.init` asks for. A new one has the target's sizes where
/// the settings say nothing, layer ids by the formula, the mask token from the tokenizer; that of
/// a folder is read and checked against the target.
/// Errors: ConfigError for sizes that do not fit, DataError for a folder that does not.
formats::DrafterConfig make_drafter_config(
    const DrafterSettings& settings,
    const formats::TargetConfig& target,
    const std::filesystem::path& target_folder);

/// Errors: DataError, with `where`, if the drafter was made for a target of other sizes.
void check_fits_target(
    const formats::DrafterConfig& drafter,
    const formats::TargetConfig& target,
    const std::string& where);

/// Builds the drafter that `drafter.init` asks for.
///   random: matrices N(0, initializer_range^2), norms 1, biases 0;
///   target: layers, norms and final norm of the target's last layers; fc passes the last
///     captured layer through; q/k norms of a target without them are set to the mean size that
///     its queries and keys have on `sample_ids`;
///   else a folder: loaded.
/// Random numbers follow from `seed` and the tensor's name alone.
Drafter build_drafter(
    const DrafterSettings& settings,
    formats::DrafterConfig config,  // from make_drafter_config
    const Target& target,             // with its layers for init = target
    const torch::Tensor& sample_ids,  // [B, S] int64; read only for init = target
    uint64_t seed);

/// Both in one: makes the config, then the drafter.
Drafter make_drafter(
    const DrafterSettings& settings,
    const TargetSettings& target_settings,
    const Target& target,
    const torch::Tensor& sample_ids,
    uint64_t seed);

}  // namespace draftsmith::model
