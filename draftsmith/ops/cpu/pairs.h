// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Matrix products of small arrays by the processor's dot products of bfloat16 pairs, which sum in
/// float32 (AVX-512 BF16). Everything stays in the caller's memory; no threads.
namespace draftsmith::ops {

/// Columns of a right factor's panel.
inline constexpr int64_t kPairPanel = 32;

/// Whether this processor has the instructions.
bool has_pair_products();

/// left [rows, depth] bfloat16 times one panel of a right factor into out [rows, 32].
struct PairProduct {
  const uint16_t* left;
  int64_t left_stride;
  const uint32_t* right;  // [depth / 2, 32]: rows 2 i (low half) and 2 i + 1 (high half)
  int64_t rows;           // a multiple of 8
  int64_t depth;          // a multiple of 2
  float* out;
  int64_t out_stride;
  bool accumulates;  // adds to `out`
};

void multiply_pairs(const PairProduct& product);

}  // namespace draftsmith::ops
