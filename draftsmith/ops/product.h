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
/// Memory: beyond `out` at most 4 bytes for each element of a part, or less than that of the largest
/// part; see is_in_product.
void product_out(
    const torch::Tensor& out,           // [M, N] rows dense
    const torch::Tensor& a,             // [M, K]
    const torch::Tensor& b,             // [K, N]
    const torch::Tensor& addend = {});  // broadcast to [M, N], or undefined

/// Rows, or columns if there are more of these, of the parts that product_out makes a bfloat16 result of;
/// the last part has what is left.
int64_t part_of_product(int64_t M, int64_t N, bool is_beside_others);

/// Whether this thread is inside a call of the library for such a part: what it asks of an allocator
/// is its own scratch, no tensor. How much that is depends on the processor.
bool is_in_product();

torch::Tensor product(                  // [M, N]
    const torch::Tensor& a,             // [M, K]
    const torch::Tensor& b,             // [K, N]
    const torch::Tensor& addend = {});  // broadcast to [M, N], or undefined

}  // namespace draftsmith::ops
