// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <vector>

#include "draftsmith/pipeline/batch_feed.h"
#include "draftsmith/pipeline/ranks.h"
#include "draftsmith/train/metrics.h"

namespace draftsmith::train {

/// Sums each of `parts` over all ranks; times become means. Afterwards every rank holds the same
/// bits, and so decides alike. Every rank calls it, also one that had no batch or that failed: its
/// `failure` is thrown there, and the others do not wait for its next call.
/// Errors: `failure`; DeviceError saying what failed on another rank.
void sum_over_ranks(
    const pipeline::Ranks& ranks,
    std::vector<MetricSums>& parts,
    int64_t block_size,
    const std::exception_ptr& failure);

/// What the workers of all processes did, with those of one name together. Every rank calls it.
std::vector<pipeline::WorkerTime> gather_times(
    const pipeline::Ranks& ranks,
    const std::vector<pipeline::WorkerTime>& own);

}  // namespace draftsmith::train
