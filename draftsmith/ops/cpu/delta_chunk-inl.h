// SPDX-License-Identifier: Apache-2.0
// What the kernels of the chunked delta rule share: gates of a chunk, fading products, triangles.
// Included once per instruction set.

#if defined(DRAFTSMITH_OPS_CPU_DELTA_CHUNK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DRAFTSMITH_OPS_CPU_DELTA_CHUNK_INL_H_
#undef DRAFTSMITH_OPS_CPU_DELTA_CHUNK_INL_H_
#else
#define DRAFTSMITH_OPS_CPU_DELTA_CHUNK_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <cmath>
#include <cstdint>

#include "draftsmith/ops/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace draftsmith::ops::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kChunk = 64;

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
constexpr int kRows = 8;  // of a tile whose sums stay in registers, 32 of them here
#else
constexpr int kRows = 4;
#endif
constexpr int kVectors = 2;  // of a tile, side by side

/// Where the vectors of value head h begin for token `first` of the batch; those of the next token are
/// `stride` further on, gates Hv.
template <class T>
struct ChunkRows {
  ChunkRows(const DeltaChunkParams& params, int64_t h, int64_t first)
      : stride(2 * params.Hk * params.Ek + params.Hv * params.Ev),
        query(
            static_cast<const T*>(params.mixed) + first * stride +
            h / (params.Hv / params.Hk) * params.Ek),
        key(query + params.Hk * params.Ek),
        value(
            static_cast<const T*>(params.mixed) + first * stride + 2 * params.Hk * params.Ek +
            h * params.Ev),
        gate(first * params.Hv + h) {}

  int64_t stride;
  const T *query, *key, *value;
  int64_t gate;
};

/// Numbers of a chunk's tokens beside their vectors.
template <class C>
struct ChunkGates {
  C key_scale[kChunk], query_scale[kChunk];  // 1 / norm, queries also / sqrt(Ek)
  C beta[kChunk];
  C high[kChunk], low[kChunk];  // sums of the decays in two parts: their differences are small
  C faded[kChunk];              // what is left at a token of the state before the chunk
  C left[kChunk];               // what is left at the chunk's end of what a token wrote

  /// From place `gate` on. Tokens from `count` on change nothing.
  void load(const DeltaChunkParams& params, int64_t gate, int64_t count) {
    const C* decays = static_cast<const C*>(params.decay) + gate;
    const C* betas = static_cast<const C*>(params.beta) + gate;
    const int64_t stride = params.Hv;
    double sums[kChunk];
    double sum = 0;
    for (int64_t i = 0; i < kChunk; ++i) {
      if (i < count) sum += static_cast<double>(decays[i * stride]);
      sums[i] = sum;
      high[i] = static_cast<C>(sum);
      low[i] = static_cast<C>(sum - static_cast<double>(high[i]));
      faded[i] = std::exp(high[i]);
      beta[i] = i < count ? betas[i * stride] : 0;
    }
    for (int64_t i = 0; i < kChunk; ++i)
      left[i] = std::exp(static_cast<C>(sum - sums[i]));
  }
  C kept() const { return faded[kChunk - 1]; }
};

/// From the products [64, 64] of raw keys with each other and of queries with keys: key_key becomes
/// A (strictly lower), query_key the scores (lower); zeros above.
template <class C>
void apply_decays(const ChunkGates<C>& gates, C* key_key, C* query_key) {
  const hn::ScalableTag<C> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  // Below it Exp is undefined and the value next to nothing.
  const auto bound = hn::Set(d, static_cast<C>(sizeof(C) == sizeof(float) ? -87 : -700));
  for (int64_t i = 0; i < kChunk; ++i) {
    for (int64_t j = 0; j < kChunk; j += lanes) {
      C* system = key_key + i * kChunk + j;
      C* scores = query_key + i * kChunk + j;
      if (j > i) {
        hn::StoreU(hn::Zero(d), d, system);
        hn::StoreU(hn::Zero(d), d, scores);
        continue;
      }
      const auto column = hn::Iota(d, static_cast<C>(j));
      const auto row = hn::Set(d, static_cast<C>(i));
      const auto high = hn::Sub(hn::Set(d, gates.high[i]), hn::LoadU(d, gates.high + j));
      const auto low = hn::Sub(hn::Set(d, gates.low[i]), hn::LoadU(d, gates.low + j));
      // Above the diagonal differences are positive: never used, and kept from overflowing.
      const auto difference = hn::Min(hn::Zero(d), hn::Add(high, low));
      const auto fading =
          hn::IfThenElseZero(hn::Gt(difference, bound), hn::Exp(d, hn::Max(difference, bound)));
      const auto scale = hn::Mul(fading, hn::LoadU(d, gates.key_scale + j));
      const auto own = hn::Set(d, gates.beta[i] * gates.key_scale[i]);
      hn::StoreU(
          hn::IfThenElseZero(
              hn::Lt(column, row), hn::Mul(hn::Mul(hn::LoadU(d, system), scale), own)),
          d, system);
      hn::StoreU(
          hn::IfThenElseZero(
              hn::Le(column, row),
              hn::Mul(hn::Mul(hn::LoadU(d, scores), scale), hn::Set(d, gates.query_scale[i]))),
          d, scores);
    }
  }
}

/// Sums of a tile: kRows rows of kVectors vectors.
template <class C>
struct TileSums {
  hn::Vec<hn::ScalableTag<C>> at[kRows][kVectors];

  HWY_INLINE void load(const C* from, int64_t stride) {
    const hn::ScalableTag<C> d;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v)
        at[r][v] = hn::LoadU(d, from + r * stride + v * lanes);
  }
  HWY_INLINE void store(C* to, int64_t stride) const {
    const hn::ScalableTag<C> d;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v)
        hn::StoreU(at[r][v], d, to + r * stride + v * lanes);
  }
};

/// The rows of a left factor that belong to a tile.
template <class C>
struct LeftRows {
  const C* at;
  int64_t row_step;    // between rows
  int64_t depth_step;  // between what meets rows of the right factor that follow each other
};

/// sums += left right, over `depth` rows of the right factor.
template <class C>
HWY_INLINE void add_products(
    const LeftRows<C>& left,
    const C* right,
    int64_t stride,
    int64_t depth,
    TileSums<C>& sums) {
  const hn::ScalableTag<C> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t k = 0; k < depth; ++k) {
    hn::Vec<hn::ScalableTag<C>> row[kVectors];
    for (int v = 0; v < kVectors; ++v)
      row[v] = hn::LoadU(d, right + k * stride + v * lanes);
    for (int r = 0; r < kRows; ++r) {
      const auto factor = hn::Set(d, left.at[r * left.row_step + k * left.depth_step]);
      for (int v = 0; v < kVectors; ++v)
        sums.at[r][v] = hn::MulAdd(factor, row[v], sums.at[r][v]);
    }
  }
}

/// left right, over `depth` rows of the right factor, as a tile of `out`.
template <class C>
void multiply_block(
    const LeftRows<C>& left,
    const C* right,
    int64_t stride,
    int64_t depth,
    C* out,
    int64_t out_stride) {
  TileSums<C> sums = {};
  add_products(left, right, stride, depth, sums);
  sums.store(out, out_stride);
}

/// Rows [i, i + kRows) and kVectors vectors of columns of: rows -= triangle rows, where the rows
/// above are solved already, and within these one after another.
template <class C>
void solve_block(const C* triangle, C* rows, int64_t i, int64_t stride) {
  const hn::ScalableTag<C> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  TileSums<C> sums;
  sums.load(rows + i * stride, stride);
  for (int64_t j = 0; j < i; ++j) {
    hn::Vec<hn::ScalableTag<C>> above[kVectors];
    for (int v = 0; v < kVectors; ++v)
      above[v] = hn::LoadU(d, rows + j * stride + v * lanes);
    for (int r = 0; r < kRows; ++r) {
      const auto factor = hn::Set(d, triangle[(i + r) * kChunk + j]);
      for (int v = 0; v < kVectors; ++v)
        sums.at[r][v] = hn::NegMulAdd(factor, above[v], sums.at[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(sums.at[r][v], d, rows + (i + r) * stride + v * lanes);
      for (int later = r + 1; later < kRows; ++later)
        sums.at[later][v] = hn::NegMulAdd(
            hn::Set(d, triangle[(i + later) * kChunk + i + r]), sums.at[r][v], sums.at[later][v]);
    }
  }
}

/// Rows [i, i + kRows) and kVectors vectors of columns of: out += triangle rows.
template <class C>
void add_block(const C* triangle, const C* rows, int64_t i, int64_t stride, C* out) {
  TileSums<C> sums;
  sums.load(out + i * stride, stride);
  add_products<C>({triangle + i * kChunk, kChunk, 1}, rows, stride, i + kRows, sums);
  sums.store(out + i * stride, stride);
}

}  // namespace draftsmith::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
