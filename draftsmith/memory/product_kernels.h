// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "draftsmith/memory/step_model.h"

namespace draftsmith::memory {

/// Shapes of a step's bfloat16 products, as product_out has them: the library keeps a kernel of each. Those
/// of attention and of the head are counted as anchors have them that are evenly spread.
int64_t count_product_kernels(const StepShape& shape);

}  // namespace draftsmith::memory
