// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace draftsmith::data {

struct BatchLimits {
  int64_t tokens_per_batch = 0;  // sequences x longest of the batch
  int64_t max_sequences_per_batch = 0;
  int64_t num_buckets = 1;
};

/// The batches of one epoch, as indices into `lengths`: every index exactly once, no batch empty,
/// sequences x longest <= tokens_per_batch. A pure function of its arguments.
///
/// Sequences are shuffled, sorted into buckets of similar length, and inside a bucket sorted by
/// length within shuffled windows of some 64 batches, so that little is padding. What does not
/// fill a batch at the end of a bucket moves on to the next longer bucket. The order of batches
/// is shuffled last.
std::vector<std::vector<int64_t>> plan_epoch(
    const std::vector<int64_t>& lengths,  // tokens, each <= tokens_per_batch
    const BatchLimits& limits,
    uint64_t seed,
    uint64_t epoch);

/// Where buckets end: bucket i holds the lengths from end i-1 (0 for the first) up to but not
/// including end i. The ends are those that leave the least padding if every sequence is padded
/// to the longest of its bucket; equal lengths are in one bucket, so there may be fewer buckets.
std::vector<int64_t> choose_bucket_ends(std::vector<int64_t> lengths, int64_t num_buckets);

/// How many batches each bucket has, by the longest sequence of a batch.
std::vector<int64_t> count_by_bucket(
    const std::vector<int64_t>& lengths,
    const std::vector<std::vector<int64_t>>& batches,
    const std::vector<int64_t>& bucket_ends);

/// Share of the batches' tokens that is padding.
double padding_share(
    const std::vector<int64_t>& lengths,
    const std::vector<std::vector<int64_t>>& batches);

}  // namespace draftsmith::data
