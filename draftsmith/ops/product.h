// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace draftsmith::ops {

/// Largest part of a product's result that one call of the library makes, where it may sum in memory of
/// its own: beyond it no call gets faster. Threads that compute products side by side make smaller ones.
inline constexpr int64_t kProductCells = int64_t{1} << 22;
inline constexpr int64_t kProductCellsOfThread = int64_t{1} << 20;

/// a b + addend, for products that no gradient passes.
///
/// Processors without bfloat16 products, and products split along the sum, make the library keep the
/// result in float32 beside `out`: three times the memory of the result. So bfloat16 on the host is
/// computed in parts.
/// Memory: beyond `out` at most 4 bytes for each element of a part; see memory/product_sums.
void product_out(
    const torch::Tensor& out,           // [M, N] rows dense
    const torch::Tensor& a,             // [M, K]
    const torch::Tensor& b,             // [K, N]
    const torch::Tensor& addend = {});  // broadcast to [M, N], or undefined

torch::Tensor product(                  // [M, N]
    const torch::Tensor& a,             // [M, K]
    const torch::Tensor& b,             // [K, N]
    const torch::Tensor& addend = {});  // broadcast to [M, N], or undefined

}  // namespace draftsmith::ops
