// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace draftsmith::memory {

struct StepShape;

/// The most bytes that the library takes on this machine beside a bfloat16 product that ops/product
/// makes, besides tensors: float32 sums of the whole result where the processor has no such products,
/// else packed operands, and sums of each thread where the sum is long. It depends on the sizes of a
/// product up to those measured here, and hardly beyond. Measured once, in some 50 ms; 0 without the
/// host allocator. The peaks of host_bytes start again.
int64_t measure_product_scratch();

/// What the library keeps of a kernel that it has compiled for one shape of a bfloat16 product on this
/// machine: 0 where it compiles none. Measured at the same time.
int64_t measure_product_kernel();

/// Puts both into a shape whose drafter is on this machine's processor.
void measure_products(StepShape& shape);

/// The most that it keeps; then those used longest ago go. Each thread holds its last few once more.
inline constexpr int64_t kMostProductKernels = 256;
inline constexpr int64_t kListedProductKernels = 16;

}  // namespace draftsmith::memory
