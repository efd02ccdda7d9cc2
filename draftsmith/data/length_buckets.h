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

/// Share of the batches' tokens that is padding.
double padding_share(
    const std::vector<int64_t>& lengths,
    const std::vector<std::vector<int64_t>>& batches);

}  // namespace draftsmith::data
