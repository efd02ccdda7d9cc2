// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/length_buckets.h"

#include <algorithm>
#include <cstddef>

#include "draftsmith/base/error.h"
#include "draftsmith/data/epoch_order.h"

namespace draftsmith::data {
namespace {

/// Most places where a bucket may end: finer steps would not be seen in the padding.
constexpr size_t kMaxCandidates = 512;

/// Lengths in ascending order where a bucket may end (inclusive), with the number of sequences up
/// to each.
struct Candidates {
  std::vector<int64_t> lengths;
  std::vector<int64_t> counts;
};

Candidates find_candidates(const std::vector<int64_t>& sorted) {
  Candidates candidates;
  const size_t n = sorted.size();
  for (size_t i = 0; i < n;) {
    size_t last = n <= kMaxCandidates ? i : std::min(n - 1, i + n / kMaxCandidates);
    while (last + 1 < n && sorted[last + 1] == sorted[last])
      ++last;
    candidates.lengths.push_back(sorted[last]);
    candidates.counts.push_back(static_cast<int64_t>(last) + 1);
    i = last + 1;
  }
  return candidates;
}

size_t find_bucket(const std::vector<int64_t>& ends, int64_t length) {
  return static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), length) - ends.begin());
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

std::vector<int64_t> choose_bucket_ends(std::vector<int64_t> lengths, int64_t num_buckets) {
  std::sort(lengths.begin(), lengths.end());
  const Candidates candidates = find_candidates(lengths);
  const size_t n = candidates.lengths.size();
  const size_t most = std::min(n, static_cast<size_t>(num_buckets));
  // cost[j]: least padded tokens of the sequences up to candidate j in the buckets so far;
  // came_from[b][j]: the candidate where the bucket before ends, n = none.
  std::vector<int64_t> cost(n);
  for (size_t j = 0; j < n; ++j)
    cost[j] = candidates.counts[j] * candidates.lengths[j];
  std::vector<std::vector<size_t>> came_from = {std::vector<size_t>(n, n)};
  for (size_t bucket = 1; bucket < most; ++bucket) {
    std::vector<int64_t> next = cost;
    std::vector<size_t> from(n, n);
    for (size_t j = bucket; j < n; ++j) {
      next[j] = INT64_MAX;
      for (size_t i = bucket - 1; i < j; ++i) {
        const int64_t own = (candidates.counts[j] - candidates.counts[i]) * candidates.lengths[j];
        if (cost[i] + own >= next[j]) continue;
        next[j] = cost[i] + own;
        from[j] = i;
      }
    }
    cost = std::move(next);
    came_from.push_back(std::move(from));
  }
  std::vector<int64_t> ends;
  size_t at = n - 1;
  for (size_t bucket = most; bucket-- > 0; at = came_from[bucket][at])
    ends.push_back(candidates.lengths[at] + 1);
  std::reverse(ends.begin(), ends.end());
  return ends;
}

std::vector<int64_t> count_by_bucket(
    const std::vector<int64_t>& lengths,
    const std::vector<std::vector<int64_t>>& batches,
    const std::vector<int64_t>& bucket_ends) {
  std::vector<int64_t> counts(bucket_ends.size(), 0);
  for (const auto& batch : batches) {
    int64_t longest = 0;
    for (const int64_t index : batch)
      longest = std::max(longest, lengths[static_cast<size_t>(index)]);
    ++counts.at(find_bucket(bucket_ends, longest));
  }
  return counts;
}

std::vector<std::vector<int64_t>> plan_epoch(
    const std::vector<int64_t>& lengths,
    const BatchLimits& limits,
    uint64_t seed,
    uint64_t epoch) {
  if (lengths.empty()) return {};
  const auto length_of = [&](int64_t index) { return lengths[static_cast<size_t>(index)]; };
  for (const int64_t length : lengths)
    DS_CHECK(length <= limits.tokens_per_batch);

  const auto ends = choose_bucket_ends(lengths, limits.num_buckets);
  std::vector<std::vector<int64_t>> buckets(ends.size());
  for (const int64_t index : shuffle(lengths.size(), seed, epoch, Purpose::kOrderSequences))
    buckets[find_bucket(ends, length_of(index))].push_back(index);

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
  for (const int64_t i : shuffle(batches.size(), seed, epoch, Purpose::kOrderBatches))
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
