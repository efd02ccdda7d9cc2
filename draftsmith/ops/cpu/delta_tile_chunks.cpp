// SPDX-License-Identifier: Apache-2.0
// The chunked delta rule on the tile unit. Keys, queries and values are bfloat16, so products of
// two of them are exact there; a float32 factor goes in as the sum of two bfloat16 matrices, which
// keeps 16 of its 24 bits. What enters the triangular system stays float32 throughout.
#include <vector>

#include <ATen/Parallel.h>

#include "draftsmith/ops/cpu/tiles.h"
#include "draftsmith/ops/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "draftsmith/ops/cpu/delta_tile_chunks.cpp"
// clang-format off: this header comes first and compiles the file once per instruction set.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "draftsmith/ops/cpu/delta_chunk-inl.h"
#include "draftsmith/ops/cpu/storage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace draftsmith::ops::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Scratch of one task; [rows, width] arrays are dense.
struct Workspace {
  Workspace(int64_t Ek, int64_t Ev)
      : query(kChunk * Ek),
        key(kChunk * Ek),
        value(kChunk * Ev),
        turned_key(Ek / 2 * kChunk),
        key_rows(Ek * kChunk),
        high(std::max(Ek, kChunk) / 2 * Ev),
        low(std::max(Ek, kChunk) / 2 * Ev),
        key_key(kChunk * kChunk),
        query_key(kChunk * kChunk),
        key_state(kChunk * Ev),
        query_state(kChunk * Ev),
        written(kChunk * Ev),
        faded(kChunk * Ev) {}

  template <class T>
  struct Array : std::vector<T> {
    explicit Array(int64_t size) : std::vector<T>(static_cast<size_t>(size)) {}
  };
  Array<BF16> query, key, value;      // [64, E] of the chunk, zeros after its tokens
  Array<uint32_t> turned_key;         // [Ek / 2, 64] keys as the right factor
  Array<BF16> key_rows;               // [Ek, 64] keys as the left factor
  Array<uint32_t> high, low;          // a float32 right factor in two parts
  Array<float> key_key, query_key;    // [64, 64] products, then the system and the scores
  Array<float> key_state, query_state;  // [64, Ev] products with the state
  Array<float> written;               // [64, Ev] V'
  Array<float> faded;                 // [64, Ev] V' as the state after the chunk takes it
  ChunkGates<float> gates;
};

inline const uint16_t* bits(const BF16* x) { return &x->bits; }

/// Copies a chunk's rows together, zeros after them.
inline void gather_rows(
    const BF16* from,
    int64_t stride,
    int64_t count,
    int64_t width,
    BF16* to) {
  for (int64_t i = 0; i < count; ++i)
    std::copy(from + i * stride, from + i * stride + width, to + i * width);
  std::fill(to + count * width, to + kChunk * width, BF16{0});
}

inline void measure_rows(const BF16* rows, int64_t width, float factor, float* scale) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));  // divides width, a multiple of 32
  for (int64_t i = 0; i < kChunk; ++i) {
    auto sums = hn::Zero(d);
    for (int64_t e = 0; e < width; e += lanes) {
      const auto x = load_wide(d, rows + i * width + e);
      sums = hn::MulAdd(x, x, sums);
    }
    scale[i] = factor / std::sqrt(hn::GetLane(hn::SumOfLanes(d, sums)) + 1e-6F);
  }
}

/// A float32 right factor [depth, width] as the sum of two bfloat16 ones.
inline void split_pairs(
    const float* x,
    int64_t depth,
    int64_t width,
    uint32_t* high,
    uint32_t* low) {
  const hn::ScalableTag<float> d;
  const hn::ScalableTag<uint32_t> d32;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto join = [&](auto even, auto odd) HWY_ATTR {
    return hn::Or(hn::ShiftRight<16>(hn::BitCast(d32, even)), hn::BitCast(d32, odd));
  };
  for (int64_t k = 0; k < depth; k += 2) {
    for (int64_t n = 0; n < width; n += lanes) {
      const auto even = hn::LoadU(d, x + k * width + n);
      const auto odd = hn::LoadU(d, x + (k + 1) * width + n);
      const auto even_high = round_to<BF16>(d, even);
      const auto odd_high = round_to<BF16>(d, odd);
      const int64_t place = k / 2 * width + n;
      hn::StoreU(join(even_high, odd_high), d32, high + place);
      hn::StoreU(
          join(
              round_to<BF16>(d, hn::Sub(even, even_high)),
              round_to<BF16>(d, hn::Sub(odd, odd_high))),
          d32, low + place);
    }
  }
}

/// Keys as a left factor [Ek, 64] from their pairs.
inline void untangle_keys(const uint32_t* turned, int64_t Ek, BF16* rows) {
  const hn::ScalableTag<uint32_t> d32;
  const hn::Rebind<uint16_t, decltype(d32)> d16;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d32));
  for (int64_t p = 0; p < Ek / 2; ++p) {
    for (int64_t j = 0; j < kChunk; j += lanes) {
      const auto pairs = hn::LoadU(d32, turned + p * kChunk + j);
      hn::StoreU(
          hn::TruncateTo(d16, hn::And(pairs, hn::Set(d32, 0xFFFFU))), d16,
          &rows[2 * p * kChunk + j].bits);
      hn::StoreU(
          hn::TruncateTo(d16, hn::ShiftRight<16>(pairs)), d16,
          &rows[(2 * p + 1) * kChunk + j].bits);
    }
  }
}

/// One chunk of `count` tokens from row `first` of the batch; `state` [Ek, Ev] follows.
inline void run_chunk(
    const DeltaChunkParams& params,
    int64_t h,
    int64_t first,
    int64_t count,
    Workspace& work,
    float* state) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t Ek = params.Ek;
  const int64_t Ev = params.Ev;
  const ChunkRows<BF16> rows(params, h, first);

  // 1. The chunk's tokens side by side.
  gather_rows(rows.query, rows.stride, count, Ek, work.query.data());
  gather_rows(rows.key, rows.stride, count, Ek, work.key.data());
  gather_rows(rows.value, rows.stride, count, Ev, work.value.data());
  ChunkGates<float>& gates = work.gates;
  measure_rows(work.query.data(), Ek, 1 / std::sqrt(static_cast<float>(Ek)), gates.query_scale);
  measure_rows(work.key.data(), Ek, 1, gates.key_scale);
  gates.load(params, rows.gate, count);

  // 2. Products among the tokens, and the system and scores that they give.
  const auto* key_words = reinterpret_cast<const uint32_t*>(work.key.data());
  transpose_words(key_words, kChunk, Ek / 2, work.turned_key.data());
  untangle_keys(work.turned_key.data(), Ek, work.key_rows.data());
  const TilePairs keys{work.turned_key.data(), kChunk};
  multiply_tiles(bits(work.key.data()), keys, kChunk, Ek, false, work.key_key.data());
  multiply_tiles(bits(work.query.data()), keys, kChunk, Ek, false, work.query_key.data());
  apply_decays(gates, work.key_key.data(), work.query_key.data());

  // 3. Products with the state before the chunk.
  split_pairs(state, Ek, Ev, work.high.data(), work.low.data());
  for (const auto& [left, product] :
       {std::pair(work.key.data(), work.key_state.data()),
        std::pair(work.query.data(), work.query_state.data())}) {
    multiply_tiles(bits(left), {work.high.data(), Ev}, kChunk, Ek, false, product);
    multiply_tiles(bits(left), {work.low.data(), Ev}, kChunk, Ek, true, product);
  }

  // 4. V' from (I + A) V' = beta (V - exp(decay) K S), and the output beside it.
  for (int64_t i = 0; i < kChunk; ++i) {
    const auto carried = hn::Set(d, -gates.faded[i] * gates.key_scale[i]);
    const auto read = hn::Set(d, gates.faded[i] * gates.query_scale[i]);
    const auto beta = hn::Set(d, gates.beta[i]);
    for (int64_t e = 0; e < Ev; e += lanes) {
      const int64_t place = i * Ev + e;
      const auto value = load_wide(d, work.value.data() + place);
      const auto change = hn::MulAdd(carried, hn::LoadU(d, work.key_state.data() + place), value);
      hn::StoreU(hn::Mul(beta, change), d, work.written.data() + place);
      float* out = work.query_state.data() + place;
      hn::StoreU(hn::Mul(read, hn::LoadU(d, out)), d, out);
    }
  }
  for (int64_t e = 0; e < Ev; e += kVectors * lanes) {
    for (int64_t i = 0; i < kChunk; i += kRows) {
      solve_block(work.key_key.data(), work.written.data() + e, i, Ev);
      add_block(work.query_key.data(), work.written.data() + e, i, Ev, work.query_state.data() + e);
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    BF16* out = static_cast<BF16*>(params.out) + ((first + i) * params.Hv + h) * Ev;
    for (int64_t e = 0; e < Ev; e += lanes)
      store_narrow(d, hn::LoadU(d, work.query_state.data() + i * Ev + e), out + e);
  }

  // 5. The state after the chunk.
  for (int64_t i = 0; i < kChunk; ++i) {
    const auto scale = hn::Set(d, gates.left[i] * gates.key_scale[i]);
    for (int64_t e = 0; e < Ev; e += lanes)
      hn::StoreU(
          hn::Mul(scale, hn::LoadU(d, work.written.data() + i * Ev + e)), d,
          work.faded.data() + i * Ev + e);
  }
  const auto keep = hn::Set(d, gates.kept());
  for (int64_t e = 0; e < Ek * Ev; e += lanes)
    hn::StoreU(hn::Mul(keep, hn::LoadU(d, state + e)), d, state + e);
  split_pairs(work.faded.data(), kChunk, Ev, work.high.data(), work.low.data());
  for (const uint32_t* part : {work.high.data(), work.low.data()})
    multiply_tiles(bits(work.key_rows.data()), {part, Ev}, Ek, kChunk, true, state);
}

/// Value head h of one span.
void run_span_head(const DeltaChunkParams& params, const Span& span, int64_t h) {
  const TileScope tiles;
  Workspace work(params.Ek, params.Ev);
  std::vector<float> own_state;
  auto* state = static_cast<float*>(params.state);
  if (state == nullptr) {
    own_state.resize(static_cast<size_t>(params.Ek * params.Ev));
    state = own_state.data();
  } else {
    state += (span.row * params.Hv + h) * params.Ek * params.Ev;
  }
  for (int64_t begin = span.begin; begin < span.end; begin += kChunk) {
    const int64_t count = std::min(kChunk, span.end - begin);
    run_chunk(params, h, span.row * params.T + begin, count, work, state);
  }
}

}  // namespace draftsmith::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace draftsmith::ops {

HWY_EXPORT(run_span_head);

bool has_delta_tile_chunks(int64_t Ek, int64_t Ev) {
  return has_tiles() && Ek % 32 == 0 && Ev % 32 == 0;
}

void compute_delta_tile_chunks(const DeltaChunkParams& params) {
  at::parallel_for(0, params.num_spans * params.Hv, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      HWY_DYNAMIC_DISPATCH(run_span_head)
    (params, params.spans[i / params.Hv], i % params.Hv);
  });
}

}  // namespace draftsmith::ops
#endif  // HWY_ONCE
