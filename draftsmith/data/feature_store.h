// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <torch/types.h>

#include "draftsmith/data/feature_format.h"
#include "draftsmith/data/token_batch.h"
#include "draftsmith/formats/safetensors.h"

namespace draftsmith::data {

/// The target's states of a dataset's sequences, mapped from the folder that `extract` wrote.
class FeatureStore {
 public:
  /// `is_partial` accepts a folder whose extraction has not ended.
  /// Errors: DataError naming a shard that is missing or damaged, or a folder that is not ended.
  explicit FeatureStore(const std::filesystem::path& folder, bool is_partial = false);

  const FeatureHeader& header() const { return header_; }
  int64_t num_shards() const { return static_cast<int64_t>(shards_.size()); }
  bool has(int64_t sequence) const { return places_.count(sequence) != 0; }

  /// Errors: DataError if the states are of another target or of other layers than these.
  void check_origin(const std::string& target, const std::vector<int64_t>& layers) const;

  struct BatchStates {
    torch::Tensor features;  // [B, S, layers D] bf16, zeros at padding
    torch::Tensor last;      // [B, S, D] bf16
  };
  /// A record is checked against its checksum the first time it is read.
  /// Errors: DataError naming shard and sequence if it is damaged, missing or too short.
  BatchStates read(const TokenBatch& tokens) const;

 private:
  /// Shard and name of a sequence's states. Errors: DataError if there are none.
  const formats::SafetensorsReader& find_shard(int64_t sequence) const;
  /// [T, parts D] bf16.
  torch::Tensor read_record(int64_t sequence) const;

  std::filesystem::path folder_;
  FeatureHeader header_;
  std::vector<formats::SafetensorsReader> shards_;
  std::map<int64_t, size_t> places_;  // sequence -> shard
  mutable std::mutex mutex_;
  mutable std::set<int64_t> checked_;  // sequences whose checksum was right
};

}  // namespace draftsmith::data
