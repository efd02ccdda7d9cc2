// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace draftsmith::data {

struct PackLimits {
  int64_t tokens_per_row = 0;
  int64_t tokens_per_batch = 0;  // decides how many sequences are packed together
};

/// Rows of an epoch as indices into `lengths`: every index exactly once, no row empty or longer
/// than tokens_per_row. A pure function of its arguments.
///
/// Sequences are shuffled; in windows of some 64 batches each goes, longest first, to the row with
/// the least room that still holds it. Rows with room left stay open for the next window.
std::vector<std::vector<int64_t>> pack_rows(
    const std::vector<int64_t>& lengths,  // tokens, 1 .. tokens_per_row
    const PackLimits& limits,
    uint64_t seed,
    uint64_t epoch);

}  // namespace draftsmith::data
