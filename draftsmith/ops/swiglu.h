// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace draftsmith::ops {

/// silu(gate) * up with silu(x) = x / (1 + exp(-x)), elementwise, in float32 (float64 for
/// float64); silu is rounded to the dtype before the product, as the models do.
///
/// Gradient: to both. Memory: the two inputs are all that is kept for backward.
torch::Tensor swiglu(
    const torch::Tensor& gate,  // any shape
    const torch::Tensor& up);   // as gate

}  // namespace draftsmith::ops
