// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>

#include "draftsmith/train/checkpoint.h"

namespace draftsmith::train {

/// `RUN/checkpoints/step-N`.
std::filesystem::path checkpoint_path(const std::filesystem::path& run_folder, int64_t step);

/// The newest complete checkpoint of a run, if it has any. Damaged ones are passed over with a
/// warning and left alone.
std::optional<std::filesystem::path> find_newest_checkpoint(
    const std::filesystem::path& run_folder,
    int64_t last_step = std::numeric_limits<int64_t>::max());

/// Removes unfinished saves, and checkpoints up to `step` beyond the newest `keep_last`, but for the
/// one that `checkpoints/best` points to. Later ones can only be damaged, and are left alone.
void remove_old_checkpoints(
    const std::filesystem::path& run_folder,
    int64_t step,
    int64_t keep_last);

/// Lets `checkpoints/best` point to this step's checkpoint. Errors: DeviceError.
void point_best_to(const std::filesystem::path& run_folder, int64_t step);

/// What the checkpoints of a run take at most at one time: `keep_last` and the best, the one that
/// is being written, and the export.
int64_t needed_bytes(const model::Drafter& drafter, const AdamW& optimizer, int64_t keep_last);

/// Errors: DeviceError if the file system of the run has less room than `needed` bytes, what the
/// run's checkpoints occupy already counted as room.
void check_room(const std::filesystem::path& run_folder, int64_t needed);

}  // namespace draftsmith::train
