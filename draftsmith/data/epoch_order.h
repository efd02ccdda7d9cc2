// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace draftsmith::data {

/// How many batches' sequences are sorted or packed together: enough that little is padding, few
/// enough that a sequence meets others in every epoch.
inline constexpr int64_t kWindowBatches = 64;

/// Keeps the draws of one seed apart.
enum class Purpose : uint64_t { kOrderSequences = 1, kOrderBatches = 2, kPackRows = 3 };

/// 0 .. count-1 in an order that follows from the arguments alone.
std::vector<int64_t> shuffle(size_t count, uint64_t seed, uint64_t epoch, Purpose purpose);

}  // namespace draftsmith::data
