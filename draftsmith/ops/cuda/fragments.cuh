// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "draftsmith/ops/cuda/device.cuh"

/// Tiles of bfloat16 rows in shared memory, and the pieces of them that `multiply` takes.
namespace draftsmith::ops::cuda {

/// Where element (row, column + 8 half) of a tile of rows of kWidth elements stands. Units of 16
/// bytes trade places within a row, so that 8 rows that follow each other have theirs of one column
/// in different banks: what a matrix load reads at once. A half of 1 is for columns that are
/// multiples of 16. Written so that a lane's places in a tile, which the compiler makes once for all
/// steps, are a few with constants added: each of them as it is would take a register.
template <int kWidth>
DS_DEVICE int tile_place(int row, int column, int half = 0) {
  constexpr unsigned kUnits = kWidth / 8;
  constexpr unsigned kTurns = kUnits < 8 ? kUnits : 8;
  constexpr unsigned kRowsOfALine = 8 / kTurns;  // of 128 bytes
  const auto unit = static_cast<unsigned>(column) / 8;
  const unsigned turn = static_cast<unsigned>(row) / kRowsOfALine % kTurns;
  const unsigned turned = unit % kTurns ^ (turn ^ static_cast<unsigned>(half));
  return row * kWidth + static_cast<int>(unit / kTurns * kTurns * 8 + turned * 8) + column % 8;
}

/// Starts copies of kRows rows to a tile; row i comes from base + offset_of(i), and is zeros where
/// that is negative.
template <int kWidth, int kRows, int kThreads, class Block, class Tile, class OffsetOf>
DS_DEVICE void
copy_rows(Block& block, const Tile& tile, const BF16* base, const OffsetOf& offset_of) {
  constexpr int kUnits = kWidth / 8;
  DS_UNROLL_BY(4)  // addresses of more take registers that sums need
  for (int begin = 0; begin < kRows * kUnits; begin += kThreads) {
    const int i = begin + block.thread();
    if (kRows * kUnits % kThreads != 0 && i >= kRows * kUnits) break;
    const int row = i / kUnits;
    const int column = i % kUnits * 8;
    const int64_t offset = offset_of(row);
    block.copy_async(
        tile, tile_place<kWidth>(row, column), offset < 0 ? base : base + offset + column,
        offset >= 0);
  }
}

/// Left factor: rows [row, row + 16), columns [k, k + 16) of the tile.
template <int kWidth, class Block, class Tile>
DS_DEVICE void load_left(Block& block, uint32_t (&a)[4], const Tile& tile, int row, int k) {
  const int lane = block.lane();
  block.load_matrices(a, tile, tile_place<kWidth>(row + lane % 16, k, lane / 16));
}

/// Left factor: the transposed rows [k, k + 16), columns [row, row + 16) of the tile.
template <int kWidth, class Block, class Tile>
DS_DEVICE void
load_left_transposed(Block& block, uint32_t (&a)[4], const Tile& tile, int row, int k) {
  const int lane = block.lane();
  block.load_transposed(
      a, tile, tile_place<kWidth>(k + lane % 8 + lane / 16 * 8, row, lane / 8 % 2));
}

/// Two right factors of 8 columns: the transposed rows [column, column + 16), columns [k, k + 16)
/// of the tile, so that products are of rows with rows.
template <int kWidth, class Block, class Tile>
DS_DEVICE void
load_right_transposed(Block& block, uint32_t (&b)[2][2], const Tile& tile, int k, int column) {
  const int lane = block.lane();
  uint32_t matrices[4];
  block.load_matrices(
      matrices, tile, tile_place<kWidth>(column + lane / 16 * 8 + lane % 8, k, lane / 8 % 2));
  b[0][0] = matrices[0], b[0][1] = matrices[1];
  b[1][0] = matrices[2], b[1][1] = matrices[3];
}

/// Two right factors of 8 columns: rows [k, k + 16), columns [column, column + 16) of the tile.
template <int kWidth, class Block, class Tile>
DS_DEVICE void load_right(Block& block, uint32_t (&b)[2][2], const Tile& tile, int k, int column) {
  const int lane = block.lane();
  uint32_t matrices[4];
  block.load_transposed(matrices, tile, tile_place<kWidth>(k + lane % 16, column, lane / 16));
  b[0][0] = matrices[0], b[0][1] = matrices[1];
  b[1][0] = matrices[2], b[1][1] = matrices[3];
}

/// sums[16, 8 kColumns] += left rows [row, row + 16) times right rows [0, 8 kColumns), over kWidth.
template <int kWidth, int kColumns, class Block, class Left, class Right>
DS_DEVICE void multiply_rows(
    Block& block,
    float (&sums)[kColumns][4],
    const Left& left,
    int row,
    const Right& right) {
  DS_UNROLL
  for (int k = 0; k < kWidth; k += 16) {
    uint32_t a[4];
    load_left<kWidth>(block, a, left, row, k);
    DS_UNROLL
    for (int n = 0; n < kColumns; n += 2) {
      uint32_t b[2][2];
      load_right_transposed<kWidth>(block, b, right, k, n * 8);
      block.multiply(sums[n], a, b[0]);
      block.multiply(sums[n + 1], a, b[1]);
    }
  }
}

/// sums[16, kWidth] += weights[16, 8 kDepth] times rows [0, 8 kDepth) of the tile. The weights are
/// where `multiply` leaves sums, and are rounded.
template <int kWidth, int kDepth, class Block, class Tile>
DS_DEVICE void add_weighted_rows(
    Block& block,
    float (&sums)[kWidth / 8][4],
    const float (&weights)[kDepth][4],
    const Tile& tile) {
  static_assert(kDepth % 2 == 0);
  DS_UNROLL
  for (int k = 0; k < kDepth; k += 2) {
    // Sums of two neighbouring [16, 8] lie as a left factor [16, 16] wants them.
    const uint32_t a[4] = {
        pack(narrow<BF16>(weights[k][0]), narrow<BF16>(weights[k][1])),
        pack(narrow<BF16>(weights[k][2]), narrow<BF16>(weights[k][3])),
        pack(narrow<BF16>(weights[k + 1][0]), narrow<BF16>(weights[k + 1][1])),
        pack(narrow<BF16>(weights[k + 1][2]), narrow<BF16>(weights[k + 1][3]))};
    DS_UNROLL
    for (int n = 0; n < kWidth / 8; n += 2) {
      uint32_t b[2][2];
      load_right<kWidth>(block, b, tile, k * 8, n * 8);
      block.multiply(sums[n], a, b[0]);
      block.multiply(sums[n + 1], a, b[1]);
    }
  }
}

template <int kColumns>
DS_DEVICE void set_zero(float (&sums)[kColumns][4]) {
  DS_UNROLL
  for (int n = 0; n < kColumns; ++n) {
    DS_UNROLL
    for (int i = 0; i < 4; ++i)
      sums[n][i] = 0;
  }
}

/// 2^x, 0 for minus infinity; on a GPU with the hardware's relative error of 2^-22.
DS_DEVICE float exp2_fast(float x) {
#ifdef __CUDACC__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::exp2(x);
#endif
}

}  // namespace draftsmith::ops::cuda
