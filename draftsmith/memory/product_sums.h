// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace draftsmith::memory {

/// Bytes that the library takes on this machine beside a bfloat16 product of ops::kProductCells elements:
/// 4 for each where the processor has no such products. Measured by making one, in some 10 ms; 0 without
/// the host allocator. The peak of host_bytes starts again.
int64_t measure_product_sums();

}  // namespace draftsmith::memory
