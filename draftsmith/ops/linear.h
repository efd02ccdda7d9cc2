// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace draftsmith::ops {

/// x weight^T + bias.
///
/// Up to `most_few_rows` rows without gradients, as in decoding, run in a kernel that reads each
/// weight once at the speed of memory, sums in float32 (float64 for float64), and gives a row the
/// same bits whatever other rows stand beside it: one token at a time and a block of tokens then
/// decode to the same output. Of rows that are the only token of their sequence (x is
/// [B, 1, in], as when B sequences are decoded) it takes up to `most_single_tokens`. Everything
/// else is libtorch's matrix product, bfloat16 on the host in parts (ops/product.h).
///
/// Gradient: to x, weight and bias.
torch::Tensor linear(             // [.., out]
    const torch::Tensor& x,       // [.., in]
    const torch::Tensor& weight,  // [out, in] as x
    const torch::Tensor& bias);   // [out] as x, or undefined

/// Whether this processor has instructions that multiply bfloat16. Without them the library's
/// products are several times slower than in float32.
bool has_half_products();

/// In float32 the library is no faster up to here, and a draft tree of 32 nodes keeps the bits of
/// plain decoding. In bfloat16 its products of many rows run on other units, if there are any.
int64_t most_few_rows(torch::ScalarType dtype);

/// In float32 the library's threads wait for each other at so few rows, and the kernel is faster up
/// to some 65. That many rows alone do not choose it: a prefill of as many tokens would round
/// differently from a longer one, and padding is to change nothing.
int64_t most_single_tokens(torch::ScalarType dtype);

/// While one lives, float32 products of its thread without gradients run in that kernel however many
/// rows there are: what verifies a draft tree of any size has the bits of decoding token by token.
class SameBitsForAnyRows {
 public:
  SameBitsForAnyRows();
  ~SameBitsForAnyRows();
  SameBitsForAnyRows(const SameBitsForAnyRows&) = delete;
  SameBitsForAnyRows& operator=(const SameBitsForAnyRows&) = delete;

 private:
  bool outer_;  // one around it lives
};

}  // namespace draftsmith::ops
