// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace draftsmith::ops {

/// Cosines and sines of the rotary angles of some positions.
struct RotaryAngles {
  torch::Tensor cos;  // [.., R/2] in the activation dtype
  torch::Tensor sin;  // [.., R/2]
};

/// angle[.., j] = position * inverse_frequency[j], computed in float32 whatever the dtype.
/// `attention_factor` multiplies both results (yarn).
RotaryAngles make_rotary_angles(
    const torch::Tensor& positions,            // [..] int64
    const torch::Tensor& inverse_frequencies,  // [R/2] fp32 (fp64 for a fp64 result)
    double attention_factor,
    torch::ScalarType dtype);

/// Rotates the pairs (x_j, x_{j + R/2}) of the first R elements of every head: the half-split
/// layout of Hugging Face checkpoints. R is twice the width of the angles; where it is less than
/// E (partial rotary), the other elements pass through. Gradient: to `x`.
torch::Tensor apply_rotary(
    const torch::Tensor& x,       // [B, S, H, E]
    const RotaryAngles& angles);  // of positions [B, S] or [1, S]

}  // namespace draftsmith::ops
