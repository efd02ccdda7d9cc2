// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/cpu/tiles.h"

#include "draftsmith/base/error.h"

#if defined(__x86_64__)

// GCC 12 takes the undefined vectors within its own intrinsics for a mistake (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace draftsmith::ops {
namespace {

constexpr int64_t kTile = 16;   // rows of a tile, and float32 columns
constexpr int64_t kDepth = 32;  // bfloat16 elements of a tile's row

/// The system grants the use of the tiles' state on request, once per process.
bool request_tiles() {
  constexpr long kRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  return __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
         __builtin_cpu_supports("avx512bw") &&
         ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

/// Eight tiles of 16 rows of 64 bytes, in the processor's layout.
struct TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);
alignas(64) const TileConfig kConfig;

}  // namespace

bool has_tiles() {
  static const bool has = request_tiles();
  return has;
}

TileScope::TileScope() {
  DS_CHECK(has_tiles());
  __asm__ volatile("ldtilecfg %0" ::"m"(kConfig));
}

TileScope::~TileScope() { __asm__ volatile("tilerelease"); }

void multiply_tiles(
    const uint16_t* left,
    const TilePairs& right,
    int64_t rows,
    int64_t depth,
    bool accumulates,
    float* out) {
  const int64_t width = right.width;
  const auto left_stride = static_cast<size_t>(depth) * sizeof(uint16_t);
  const auto stride = static_cast<size_t>(width) * sizeof(float);  // of pairs and of the result
  for (int64_t m = 0; m < rows; m += 2 * kTile) {
    for (int64_t n = 0; n < width; n += 2 * kTile) {
      float* corner = out + m * width + n;
      float* below = corner + kTile * width;
      if (accumulates) {
        _tile_loadd(0, corner, stride);
        _tile_loadd(1, corner + kTile, stride);
        _tile_loadd(2, below, stride);
        _tile_loadd(3, below + kTile, stride);
      } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
      }
      for (int64_t k = 0; k < depth; k += kDepth) {
        const uint16_t* upper = left + m * depth + k;
        const uint32_t* pairs = right.pairs + k / 2 * width + n;
        _tile_loadd(4, upper, left_stride);
        _tile_loadd(6, pairs, stride);
        _tile_loadd(5, upper + kTile * depth, left_stride);
        _tile_loadd(7, pairs + kTile, stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      _tile_stored(0, corner, stride);
      _tile_stored(1, corner + kTile, stride);
      _tile_stored(2, below, stride);
      _tile_stored(3, below + kTile, stride);
    }
  }
}

__attribute__((target("avx512f"))) void
transpose_words(const uint32_t* words, int64_t rows, int64_t width, uint32_t* out) {
  for (int64_t r = 0; r < rows; r += kTile) {
    for (int64_t c = 0; c < width; c += kTile) {
      __m512i a[kTile];
      __m512i b[kTile];
      for (int64_t i = 0; i < kTile; ++i)
        a[i] = _mm512_loadu_si512(words + (r + i) * width + c);
      // 1. Pairs of rows, word by word: lanes hold 2 x 1 columns.
      for (int64_t i = 0; i < kTile; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
      }
      // 2. Fours of rows: each 128-bit lane holds one column of four rows.
      for (int64_t i = 0; i < kTile; i += 4) {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
      }
      // 3. Lanes of four and four rows, then of eight and eight.
      for (int64_t i = 0; i < 4; ++i) {
        b[i] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);
        b[i + 4] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
        b[i + 8] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
        b[i + 12] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
      }
      for (int64_t i = 0; i < 4; ++i) {
        a[i] = _mm512_shuffle_i32x4(b[i], b[i + 8], 0x88);
        a[i + 8] = _mm512_shuffle_i32x4(b[i], b[i + 8], 0xdd);
        a[i + 4] = _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0x88);
        a[i + 12] = _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0xdd);
      }
      for (int64_t i = 0; i < kTile; ++i)
        _mm512_storeu_si512(out + (c + i) * rows + r, a[i]);
    }
  }
}

}  // namespace draftsmith::ops

#else  // other processors have no such unit

namespace draftsmith::ops {

bool has_tiles() { return false; }
TileScope::TileScope() { DS_CHECK(has_tiles()); }
TileScope::~TileScope() = default;
void multiply_tiles(const uint16_t*, const TilePairs&, int64_t, int64_t, bool, float*) {
  DS_CHECK(has_tiles());
}
void transpose_words(const uint32_t*, int64_t, int64_t, uint32_t*) { DS_CHECK(has_tiles()); }

}  // namespace draftsmith::ops

#endif
