// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace draftsmith::ops {

/// float32 numbers as the bfloat16 numbers nearest to them and the 16 bits that are left:
///   bits(value) = bits(high) * 2^16 + low,   -2^15 <= low < 2^15.
/// A number half-way between two goes to the one farther from zero. With halves to even, as
/// elsewhere, an even `high` would have 2^16 + 1 values, more than `low` can tell apart.
/// Memory: three integers a number. Numbers are no NaN.
void split_float(
    const torch::Tensor& value,  // [..] fp32
    const torch::Tensor& high,   // [..] bf16, written
    const torch::Tensor& low);   // [..] int16, written; undefined if it is not needed

/// The numbers again, bit for bit.
torch::Tensor join_float(       // [..] fp32
    const torch::Tensor& high,  // [..] bf16
    const torch::Tensor& low);  // [..] int16

}  // namespace draftsmith::ops
