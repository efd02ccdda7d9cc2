// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "draftsmith/data/token_dataset.h"

namespace draftsmith::data {

/// What planning needs of all sequences of a dataset, 8 bytes each.
struct SequenceIndex {
  static constexpr uint32_t kNoAnchor = UINT32_MAX;

  std::vector<uint32_t> lengths;        // tokens
  std::vector<uint32_t> first_anchors;  // as SequenceFacts has them, or kNoAnchor
  int64_t smallest_id = 0;              // of all sequences
  int64_t largest_id = 0;
};

/// Reads all of the dataset once, with progress.
/// Errors: DataError naming the row for sequences that cannot be read.
SequenceIndex scan_sequences(const TokenDataset& dataset);

/// The index of an earlier scan, or nothing if the file is missing, damaged or of another state
/// of the dataset: its fingerprint and the lengths of all its sequences must agree.
std::optional<SequenceIndex> read_index(
    const std::filesystem::path& path,
    const TokenDataset& dataset);

/// Errors: DeviceError if the disk refuses.
void write_index(
    const std::filesystem::path& path,
    const SequenceIndex& index,
    const TokenDataset& dataset);

/// The index of a dataset: read from beside the dataset or from `folder`, else scanned.
/// `was_scanned` says which.
SequenceIndex
load_index(const TokenDataset& dataset, const std::filesystem::path& folder, bool& was_scanned);

/// Keeps a scanned index beside the dataset, or in `folder` where that cannot be written. A disk
/// that refuses both is a warning: the next run scans again.
void keep_index(
    const SequenceIndex& index,
    const TokenDataset& dataset,
    const std::filesystem::path& folder);

}  // namespace draftsmith::data
