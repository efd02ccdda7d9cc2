// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "draftsmith/data/token_dataset.h"

namespace draftsmith::data {

/// Writes sequences, one after the other, as a folder that Hugging Face `datasets.load_from_disk`
/// and TokenDataset read: shards of Arrow IPC streams with input_ids (int32) and loss_mask (int8),
/// state.json and dataset_info.json. The folder appears complete, by `finish`, or not at all.
class DatasetWriter {
 public:
  /// Errors: DeviceError if the disk refuses, here and below.
  explicit DatasetWriter(
      const std::filesystem::path& folder,
      int64_t tokens_per_shard = int64_t{100} << 20);
  DatasetWriter(const DatasetWriter&) = delete;
  DatasetWriter& operator=(const DatasetWriter&) = delete;
  ~DatasetWriter();

  /// Where other files are written that appear together with the folder.
  const std::filesystem::path& staging() const;

  void add(const TokenSequence& sequence);
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// All of `sequences` at once.
void write_dataset(
    const std::filesystem::path& folder,
    const std::vector<TokenSequence>& sequences);

}  // namespace draftsmith::data
