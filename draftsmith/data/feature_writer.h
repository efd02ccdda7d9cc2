// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <filesystem>
#include <mutex>
#include <thread>
#include <vector>

#include <torch/types.h>

#include "draftsmith/data/feature_format.h"

namespace draftsmith::data {

/// States of one sequence on their way to the disk.
struct FeatureRecord {
  int64_t sequence = 0;
  torch::Tensor states;  // [T, (layers + 1) D]
};

/// Packs and writes records in a thread of its own. A shard appears whole or not at all, and holds
/// whole batches.
class FeatureWriter {
 public:
  /// `first_shard` shards are there already.
  FeatureWriter(
      std::filesystem::path folder,
      FeatureHeader header,
      int64_t first_shard,
      int64_t shard_bytes = int64_t{256} << 20);
  FeatureWriter(const FeatureWriter&) = delete;
  FeatureWriter& operator=(const FeatureWriter&) = delete;
  ~FeatureWriter();

  /// Takes the records of a batch; waits while two batches are waiting to be written.
  /// Errors: DeviceError of the thread if the disk refused.
  void add(std::vector<FeatureRecord> batch);

  /// Writes what is left and marks the folder as complete. Errors: as `add`.
  void finish();

 private:
  void run();
  void pack(const std::vector<FeatureRecord>& batch);
  void write_shard();
  void rethrow();

  std::filesystem::path folder_;
  FeatureHeader header_;
  int64_t num_shards_;
  int64_t shard_bytes_;

  std::vector<std::pair<int64_t, StoredStates>> open_;  // of the shard to come
  int64_t open_bytes_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::vector<FeatureRecord>> queue_;
  bool is_ended_ = false;
  std::exception_ptr error_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace draftsmith::data
