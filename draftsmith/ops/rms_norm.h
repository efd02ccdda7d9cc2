// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace draftsmith::ops {

/// x / sqrt(mean(x^2) + eps) over the last dimension in float32, cast to the dtype of `x`, then
/// times `weight` in that dtype. (The norm of Llama and Qwen3; Qwen3.5 scales by 1 + weight.)
///
/// Gradient: to `x` and `weight`. float64 stays float64.
torch::Tensor rms_norm(
    const torch::Tensor& x,       // [.., D]
    const torch::Tensor& weight,  // [D] as x
    double eps);

}  // namespace draftsmith::ops
