// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <vector>

#include "draftsmith/data/token_dataset.h"

namespace draftsmith::data {

/// Writes sequences as a folder that Hugging Face `datasets.load_from_disk` and TokenDataset
/// read: one Arrow IPC stream with input_ids (int32) and loss_mask (int8), state.json and
/// dataset_info.json. The folder appears complete or not at all.
/// Errors: DeviceError if the disk refuses.
void write_dataset(
    const std::filesystem::path& folder,
    const std::vector<TokenSequence>& sequences);

}  // namespace draftsmith::data
