// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/length_buckets.h"

#include <algorithm>
#include <numeric>

#include "draftsmith/base/error.h"
#include "draftsmith/base/random.h"

namespace draftsmith::data {
namespace {

constexpr int64_t kWindowBatches = 64;
enum Purpose : uint64_t { kOrderSequences = 1, kOrderBatches = 2 };

/// 0 .. count-1 in the order of their hash keys.
std::vector<int64_t> shuffle(size_t count, uint64_t seed, uint64_t epoch, Purpose purpose) {
  std::vector<std::pair<uint64_t, int64_t>> keyed(count);
  for (size_t i = 0; i < count; ++i)
    keyed[i] = {hash_key({seed, epoch, purpose, i}), static_cast<int64_t>(i)};
  std::sort(keyed.begin(), keyed.end());
  std::vector<int64_t> order(count);
  std::transform(
      keyed.begin(), keyed.end(), order.begin(), [](const auto& item) { return item.second; });
  return order;
}

/// Longest length of each bucket but the last: equal numbers of sequences between them.
std::vector<int64_t> choose_boundaries(std::vector<int64_t> lengths, int64_t num_buckets) {
  std::sort(lengths.begin(), lengths.end());
  std::vector<int64_t> boundaries;
  for (int64_t bucket = 1; bucket < num_buckets; ++bucket)
    boundaries.push_back(
        lengths[lengths.size() * static_cast<size_t>(bucket) / static_cast<size_t>(num_buckets)]);
  return boundaries;
}

/// Cuts sequences sorted by length into full batches and returns the rest.
std::vector<int64_t> fill_batches(
    const std::vector<int64_t>& sorted,
    const std::vector<int64_t>& lengths,
    const BatchLimits& limits,
    std::vector<std::vector<int64_t>>& batches) {
  std::vector<int64_t> open;
  for (const int64_t index : sorted) {
    const int64_t count = static_cast<int64_t>(open.size()) + 1;
    const bool fits = count * lengths[static_cast<size_t>(index)] <= limits.tokens_per_batch &&
                      count <= limits.max_sequences_per_batch;
    if (!fits) {
      batches.push_back(std::move(open));
      open.clear();
    }
    open.push_back(index);
  }
  return open;
}

}  // namespace

std::vector<std::vector<int64_t>> plan_epoch(
    const std::vector<int64_t>& lengths,
    const BatchLimits& limits,
    uint64_t seed,
    uint64_t epoch) {
  if (lengths.empty()) return {};
  const auto length_of = [&](int64_t index) { return lengths[static_cast<size_t>(index)]; };
  for (const int64_t length : lengths)
    DS_CHECK(length <= limits.tokens_per_batch);

  const auto boundaries = choose_boundaries(lengths, limits.num_buckets);
  std::vector<std::vector<int64_t>> buckets(boundaries.size() + 1);
  for (const int64_t index : shuffle(lengths.size(), seed, epoch, kOrderSequences)) {
    const auto above = std::upper_bound(boundaries.begin(), boundaries.end(), length_of(index) - 1);
    buckets[static_cast<size_t>(above - boundaries.begin())].push_back(index);
  }

  std::vector<std::vector<int64_t>> batches;
  std::vector<int64_t> rest;
  for (auto& bucket : buckets) {
    rest.insert(rest.end(), bucket.begin(), bucket.end());
    bucket = std::move(rest);
    rest.clear();
    size_t begin = 0;
    while (begin < bucket.size()) {
      size_t end = begin;
      int64_t tokens = 0;
      while (end < bucket.size() && tokens < kWindowBatches * limits.tokens_per_batch)
        tokens += length_of(bucket[end++]);
      std::vector<int64_t> window(
          bucket.begin() + static_cast<std::ptrdiff_t>(begin),
          bucket.begin() + static_cast<std::ptrdiff_t>(end));
      window.insert(window.end(), rest.begin(), rest.end());
      std::stable_sort(window.begin(), window.end(), [&](int64_t left, int64_t right) {
        return length_of(left) < length_of(right);
      });
      rest = fill_batches(window, lengths, limits, batches);
      begin = end;
    }
  }
  if (!rest.empty()) batches.push_back(std::move(rest));

  std::vector<std::vector<int64_t>> ordered;
  for (const int64_t i : shuffle(batches.size(), seed, epoch, kOrderBatches))
    ordered.push_back(std::move(batches[static_cast<size_t>(i)]));
  return ordered;
}

double padding_share(
    const std::vector<int64_t>& lengths,
    const std::vector<std::vector<int64_t>>& batches) {
  int64_t real = 0;
  int64_t padded = 0;
  for (const auto& batch : batches) {
    int64_t longest = 0;
    for (const int64_t index : batch) {
      real += lengths[static_cast<size_t>(index)];
      longest = std::max(longest, lengths[static_cast<size_t>(index)]);
    }
    padded += longest * static_cast<int64_t>(batch.size());
  }
  return padded == 0 ? 0 : 1 - static_cast<double>(real) / static_cast<double>(padded);
}

}  // namespace draftsmith::data
