// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace draftsmith::ops {

/// x / sqrt(mean(x^2) + eps) over the last dimension in float32, cast to the dtype of `x`, then
/// times `weight` in that dtype: the norm of Llama and Qwen3.
///
/// Gradient: to `x` and `weight`. float64 stays float64.
torch::Tensor rms_norm(
    const torch::Tensor& x,       // [.., D]
    const torch::Tensor& weight,  // [D] as x
    double eps);

/// The same times 1 + weight, all in float32 and cast last: the norm of Qwen3.5, whose weights lie
/// around 0. Gradient: none.
torch::Tensor zero_centred_rms_norm(
    const torch::Tensor& x,       // [.., D]
    const torch::Tensor& weight,  // [D] as x
    double eps);

/// rms_norm(x) silu(gate), the last product in float32. Gradient: none.
torch::Tensor gated_rms_norm(
    const torch::Tensor& x,       // [.., D]
    const torch::Tensor& weight,  // [D] as x
    const torch::Tensor& gate,    // [.., D] as x
    double eps);

}  // namespace draftsmith::ops
