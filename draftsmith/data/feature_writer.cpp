// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/feature_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "draftsmith/formats/safetensors.h"

namespace draftsmith::data {
namespace {
constexpr size_t kQueueBatches = 2;
}  // namespace

FeatureWriter::FeatureWriter(
    std::filesystem::path folder,
    FeatureHeader header,
    int64_t first_shard,
    int64_t shard_bytes)
    : folder_(std::move(folder)),
      header_(std::move(header)),
      num_shards_(first_shard),
      shard_bytes_(shard_bytes),
      thread_([this] { run(); }) {}

FeatureWriter::~FeatureWriter() {
  const std::lock_guard lock(mutex_);
  is_ended_ = true;
  queue_.clear();
  changed_.notify_all();
}

void FeatureWriter::add(std::vector<FeatureRecord> batch) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.size() < kQueueBatches || error_ != nullptr; });
  rethrow();
  queue_.push_back(std::move(batch));
  changed_.notify_all();
}

void FeatureWriter::finish() {
  {
    const std::lock_guard lock(mutex_);
    is_ended_ = true;
    changed_.notify_all();
  }
  thread_.join();
  rethrow();
  if (!open_.empty()) write_shard();
  header_.num_shards = num_shards_;
  write_feature_header(folder_, header_);
}

void FeatureWriter::rethrow() {
  if (error_ != nullptr) std::rethrow_exception(error_);
}

void FeatureWriter::run() {
  while (true) {
    std::vector<FeatureRecord> batch;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !queue_.empty() || is_ended_; });
      if (queue_.empty()) return;
      batch = std::move(queue_.front());
      queue_.pop_front();
      changed_.notify_all();
    }
    try {
      pack(batch);
      if (open_bytes_ >= shard_bytes_) write_shard();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
      changed_.notify_all();
      return;
    }
  }
}

void FeatureWriter::pack(const std::vector<FeatureRecord>& batch) {
  for (const FeatureRecord& record : batch) {
    open_.emplace_back(
        record.sequence, pack_states(record.states, header_.num_parts(), header_.format));
    open_bytes_ += record.states.size(0) * header_.bytes_per_token();
  }
}

void FeatureWriter::write_shard() {
  formats::NamedTensors tensors;
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  for (const auto& [sequence, stored] : open_) {
    tensors.emplace_back(fmt::format("{}.states", sequence), stored.values);
    if (stored.scales.defined())
      tensors.emplace_back(fmt::format("{}.scales", sequence), stored.scales);
    metadata[std::to_string(sequence)] = checksum_states(stored);
  }
  // float32 scales behind odd byte counts would not be aligned: the wide ones go first.
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& left, const auto& right) {
    return left.second.element_size() > right.second.element_size();
  });
  formats::write_safetensors(feature_shard(folder_, num_shards_), tensors, metadata);
  ++num_shards_;
  open_.clear();
  open_bytes_ = 0;
}

}  // namespace draftsmith::data
