// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace draftsmith::ops {

/// x weight^T + bias.
///
/// Up to kFewRows rows without gradients, as in decoding, run in a kernel that reads each weight
/// once at the speed of memory, sums in float32 (float64 for float64), and gives a row the same
/// bits whatever other rows stand beside it: one token at a time and a block of tokens then decode
/// to the same output. Everything else is libtorch's matrix product.
///
/// Gradient: to x, weight and bias.
torch::Tensor linear(             // [.., out]
    const torch::Tensor& x,       // [.., in]
    const torch::Tensor& weight,  // [out, in] as x
    const torch::Tensor& bias);   // [out] as x, or undefined

inline constexpr int64_t kFewRows = 16;

}  // namespace draftsmith::ops
