// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace draftsmith::ops {

inline constexpr int64_t kElementsPerTask = 16384;

/// Rows of this width that are worth a task of at::parallel_for.
inline int64_t rows_per_task(int64_t width) {
  return std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, width));
}

}  // namespace draftsmith::ops
