// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Matrix products of small dense arrays on the tile unit of the processor (AMX), which multiplies
/// bfloat16 into float32. Everything stays in the caller's memory; no threads.
namespace draftsmith::ops {

/// Whether this processor and system have the unit.
bool has_tiles();

/// Sets the calling thread's tiles up for `multiply_tiles`, and gives them back.
class TileScope {
 public:
  TileScope();
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
  ~TileScope();
};

/// The right factor of a product, in pairs of rows: element (k, n) of a [depth, width] bfloat16
/// matrix is half k % 2 (low half first) of pairs[k / 2 * width + n].
struct TilePairs {
  const uint32_t* pairs;
  int64_t width;
};

/// out (+)= left right, with left [rows, depth] bfloat16 and out [rows, right.width] float32, dense.
/// rows, depth and right.width are multiples of 32.
void multiply_tiles(
    const uint16_t* left,
    const TilePairs& right,
    int64_t rows,
    int64_t depth,
    bool accumulates,
    float* out);

/// Turns [rows, width] of 32-bit words around: out [width, rows]. Both are multiples of 16.
void transpose_words(const uint32_t* words, int64_t rows, int64_t width, uint32_t* out);

}  // namespace draftsmith::ops
