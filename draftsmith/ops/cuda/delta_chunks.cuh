// SPDX-License-Identifier: Apache-2.0 The chunked delta rule on tensor cores. Keys, queries and
// values are bfloat16, so products of two of them are exact there; a float32 factor goes in as the
// sum of two bfloat16 matrices, which keeps 16 of its 24 bits. The triangular system and what
// follows from it stay float32 throughout.
#pragma once

#include <utility>

#include "draftsmith/ops/cuda/fragments.cuh"
#include "draftsmith/ops/kernels.h"

namespace draftsmith::ops::cuda {

/// A thread block per span, value head and kColumns columns of the state: columns do not depend on
/// each other. It keeps them in registers and walks over the chunks; a warp has 16 tokens of a
/// chunk, and rows of the state.
template <int kKeyWidth>
struct DeltaChunkKernel {
  static constexpr int kThreads = 128;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kChunk = 16 * kWarps;
  static constexpr int kColumns = 32;
  static constexpr int Ek = kKeyWidth;
  static constexpr int kStateTiles = Ek / (16 * kWarps);  // of 16 rows, a warp's
  static_assert(Ek % (16 * kWarps) == 0);
  DeltaChunkParams params;

  int64_t shared_bytes() const {
    return 2 * (2 * kChunk * Ek + kChunk * kColumns + 2 * Ek * kColumns) +
           4 * (2 * kChunk * kChunk + kChunk * kColumns + 5 * kChunk);
  }

  template <class Block>
  DS_DEVICE void operator()(Block& block) const {
    Chunk<Block> chunk(block, params);
    const int64_t groups = params.Ev / kColumns;
    const int64_t h = block.index() / groups % params.Hv;
    const Span span = params.spans[block.index() / groups / params.Hv];
    const int64_t first_column = block.index() % groups * kColumns;
    auto* saved = static_cast<float*>(params.state);
    if (saved != nullptr) saved += (span.row * params.Hv + h) * Ek * params.Ev + first_column;

    float state[kStateTiles][kColumns / 8][4];
    for_state(block, [&](int i, int n, int j, int row, int column) {
      state[i][n][j] = saved == nullptr ? 0 : saved[row * params.Ev + column];
    });
    for (int64_t begin = span.begin; begin < span.end; begin += kChunk) {
      const int64_t left = span.end - begin;
      chunk.run(
          span.row * params.T + begin, static_cast<int>(left < kChunk ? left : kChunk), h,
          first_column, state);
    }
    if (saved == nullptr) return;
    for_state(block, [&](int i, int n, int j, int row, int column) {
      saved[row * params.Ev + column] = state[i][n][j];
    });
  }

 private:
  /// `run(i, n, j, row, column)` for every element of the state that this lane holds.
  template <class Block, class Run>
  DS_DEVICE static void for_state(Block& block, const Run& run) {
    const MmaLayout layout{block.lane()};
    DS_UNROLL
    for (int i = 0; i < kStateTiles; ++i) {
      DS_UNROLL
      for (int n = 0; n < kColumns / 8; ++n) {
        DS_UNROLL
        for (int j = 0; j < 4; ++j)
          run(i, n, j, (block.warp() * kStateTiles + i) * 16 + layout.sum_row(j),
              n * 8 + layout.sum_column(j));
      }
    }
  }

  /// Shared memory, and what is done with it for each chunk.
  template <class Block>
  struct Chunk {
    template <class T>
    using Shared = decltype(std::declval<Block&>().template shared<T>(0));
    using State = float[kStateTiles][kColumns / 8][4];
    using Sums = float[kColumns / 8][4];   // of a warp's 16 tokens, a column of the state each
    using Squares = float[kChunk / 8][4];  // a token of the chunk each

    Block& block;
    const DeltaChunkParams& params;
    MmaLayout layout;
    int row;                       // first of the warp's tokens
    Shared<BF16> key, query;       // [64, Ek]
    Shared<BF16> value;            // [64, 32]
    Shared<BF16> high, low;        // [Ek, 32] the state, then what is written to it, in two parts
    Shared<float> system, scores;  // [64, 64]
    Shared<float> written;         // [64, 32] the right side of the system, then its solution
    Shared<float> steps;           // [64] decays
    Shared<float> decay;           // [64] their sums
    Shared<float> beta;            // [64]
    Shared<float> key_scale;       // [64] 1 / norm
    Shared<float> query_scale;     // [64] 1 / norm / sqrt(Ek)

    DS_DEVICE Chunk(Block& b, const DeltaChunkParams& p)
        : block(b),
          params(p),
          layout{b.lane()},
          row(b.warp() * 16),
          key(b.template shared<BF16>(kChunk * Ek)),
          query(b.template shared<BF16>(kChunk * Ek)),
          value(b.template shared<BF16>(kChunk * kColumns)),
          high(b.template shared<BF16>(Ek * kColumns)),
          low(b.template shared<BF16>(Ek * kColumns)),
          system(b.template shared<float>(kChunk * kChunk)),
          scores(b.template shared<float>(kChunk * kChunk)),
          written(b.template shared<float>(kChunk * kColumns)),
          steps(b.template shared<float>(kChunk)),
          decay(b.template shared<float>(kChunk)),
          beta(b.template shared<float>(kChunk)),
          key_scale(b.template shared<float>(kChunk)),
          query_scale(b.template shared<float>(kChunk)) {}

    /// `count` tokens from row `first` of the batch.
    DS_DEVICE void run(int64_t first, int count, int64_t h, int64_t first_column, State& state) {
      load(first, count, h, first_column);
      for_state(
          block, [&](int i, int n, int j, int r, int column) { split(r, column, state[i][n][j]); });
      block.template wait_copies<0>();
      block.sync();
      measure_rows();
      block.sync();
      Sums out;
      multiply(out);
      block.sync();
      solve();
      read(out);
      store(out, first, count, h, first_column);
      fade_written();
      block.sync();
      advance(state);
      block.sync();
    }

   private:
    DS_DEVICE void load(int64_t first, int count, int64_t h, int64_t first_column) {
      const int64_t key_width = params.Hk * Ek;
      const int64_t width = 2 * key_width + params.Hv * params.Ev;
      const int64_t key_head = h / (params.Hv / params.Hk);
      const BF16* mixed = static_cast<const BF16*>(params.mixed) + first * width;
      const auto offset_of = [&](int i) { return i < count ? i * width : int64_t{-1}; };
      copy_rows<Ek, kChunk, kThreads>(block, query, mixed + key_head * Ek, offset_of);
      copy_rows<Ek, kChunk, kThreads>(block, key, mixed + key_width + key_head * Ek, offset_of);
      copy_rows<kColumns, kChunk, kThreads>(
          block, value, mixed + 2 * key_width + h * params.Ev + first_column, offset_of);
      block.commit_copies();
      const int i = block.thread();
      if (i >= kChunk) return;
      const int64_t gate = (first + i) * params.Hv + h;
      steps.store(i, i < count ? static_cast<const float*>(params.decay)[gate] : 0);
      beta.store(i, i < count ? static_cast<const float*>(params.beta)[gate] : 0);
    }

    DS_DEVICE void split(int r, int column, float x) {
      const int place = tile_place<kColumns>(r, column);
      const BF16 rounded = narrow<BF16>(x);
      high.store(place, rounded);
      low.store(place, narrow<BF16>(x - widen(rounded)));
    }

    /// Scales of keys in one half of the threads, of queries in the other; sums of decays in order.
    DS_DEVICE void measure_rows() {
      const int i = block.thread() % kChunk;
      const bool is_key = block.thread() < kChunk;
      float squares = 0;
      for (int e = 0; e < Ek; e += 8) {
        const auto part = (is_key ? key : query).load_vector(tile_place<Ek>(i, e));
        DS_UNROLL
        for (int j = 0; j < 8; ++j)
          squares += widen(part.values[j]) * widen(part.values[j]);
      }
      const float scale = 1 / std::sqrt(squares + 1e-6F);
      if (!is_key) {
        query_scale.store(i, scale / std::sqrt(static_cast<float>(Ek)));
        return;
      }
      key_scale.store(i, scale);
      float sum = 0;
      for (int j = 0; j <= i; ++j)
        sum += steps.load(j);
      decay.store(i, sum);
    }

    /// Products of keys and queries with keys and with the state: the system, its right side, the
    /// scores, and in `out` what the queries read of the state.
    DS_DEVICE void multiply(Sums& out) {
      Squares key_key, query_key;
      Sums key_state;
      set_zero(key_key);
      set_zero(query_key);
      set_zero(key_state);
      set_zero(out);
      DS_UNROLL
      for (int k = 0; k < Ek; k += 16) {
        uint32_t keys[4], queries[4], right[2][2];
        load_left<Ek>(block, keys, key, row, k);
        load_left<Ek>(block, queries, query, row, k);
        DS_UNROLL
        for (int n = 0; n < kChunk / 8; n += 2) {
          if (n * 8 > row) continue;  // later than all of the warp's tokens
          load_right_transposed<Ek>(block, right, key, k, n * 8);
          DS_UNROLL
          for (int i = 0; i < 2; ++i) {
            block.multiply(key_key[n + i], keys, right[i]);
            block.multiply(query_key[n + i], queries, right[i]);
          }
        }
        DS_UNROLL
        for (int part = 0; part < 2; ++part) {
          DS_UNROLL
          for (int n = 0; n < kColumns / 8; n += 2) {
            load_right<kColumns>(block, right, part == 0 ? high : low, k, n * 8);
            DS_UNROLL
            for (int i = 0; i < 2; ++i) {
              block.multiply(key_state[n + i], keys, right[i]);
              block.multiply(out[n + i], queries, right[i]);
            }
          }
        }
      }
      DS_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int i = row + layout.sum_row(j);
        const float sum = decay.load(i);
        const float own_beta = beta.load(i);
        const float own_scale = key_scale.load(i);
        const float own_query_scale = query_scale.load(i);
        DS_UNROLL
        for (int n = 0; n < kChunk / 8; ++n) {
          const int other = n * 8 + layout.sum_column(j);
          // Later tokens are left out before exp, which may overflow there.
          const float factor =
              other > i ? 0 : std::exp(sum - decay.load(other)) * key_scale.load(other);
          system.store(
              i * kChunk + other, other < i ? own_beta * own_scale * factor * key_key[n][j] : 0);
          scores.store(i * kChunk + other, own_query_scale * factor * query_key[n][j]);
        }
        const float faded = std::exp(sum);
        DS_UNROLL
        for (int n = 0; n < kColumns / 8; ++n) {
          const int column = n * 8 + layout.sum_column(j);
          const float v = widen(value.load(tile_place<kColumns>(i, column)));
          written.store(
              i * kColumns + column, own_beta * (v - faded * own_scale * key_state[n][j]));
          out[n][j] *= faded * own_query_scale;
        }
      }
    }

    /// (I + system) solution = written, in place, 16 tokens at a time: first all threads take out
    /// what earlier tokens wrote, then a lane of the first warp goes down each column.
    DS_DEVICE void solve() {
      constexpr int kRows = 16;
      const int column = block.lane();
      for (int begin = 0; begin < kChunk; begin += kRows) {
        constexpr int kOwn = kRows / kWarps;
        DS_UNROLL
        for (int r = 0; r < kOwn; ++r) {
          const int i = begin + block.warp() * kOwn + r;
          float sum = written.load(i * kColumns + column);
          for (int j = 0; j < begin; j += 4) {
            const auto factors = system.load_vector(i * kChunk + j);
            DS_UNROLL
            for (int m = 0; m < 4; ++m)
              sum -= factors.values[m] * written.load((j + m) * kColumns + column);
          }
          written.store(i * kColumns + column, sum);
        }
        block.sync();
        if (block.warp() == 0) {
          float solution[kRows];
          DS_UNROLL
          for (int i = 0; i < kRows; ++i) {
            float sum = written.load((begin + i) * kColumns + column);
            DS_UNROLL
            for (int j = 0; j < i; ++j)
              sum -= system.load((begin + i) * kChunk + begin + j) * solution[j];
            solution[i] = sum;
            written.store((begin + i) * kColumns + column, sum);
          }
        }
        block.sync();
      }
    }

    /// Adds what the queries read of the chunk's own tokens.
    DS_DEVICE void read(Sums& out) {
      for (int j = 0; j < row + 16; ++j) {
        const float score[2] = {
            scores.load((row + layout.sum_row(0)) * kChunk + j),
            scores.load((row + layout.sum_row(2)) * kChunk + j)};
        DS_UNROLL
        for (int n = 0; n < kColumns / 8; ++n) {
          DS_UNROLL
          for (int i = 0; i < 2; ++i) {
            const float x = written.load(j * kColumns + n * 8 + layout.sum_column(i));
            out[n][i] += score[0] * x;
            out[n][2 + i] += score[1] * x;
          }
        }
      }
    }

    DS_DEVICE void
    store(const Sums& out, int64_t first, int count, int64_t h, int64_t first_column) {
      DS_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int i = row + layout.sum_row(2 * half);
        if (i >= count) continue;
        BF16* to = static_cast<BF16*>(params.out) + ((first + i) * params.Hv + h) * params.Ev +
                   first_column;
        DS_UNROLL
        for (int n = 0; n < kColumns / 8; ++n) {
          const Vector<BF16, 2> pair{
              {narrow<BF16>(out[n][2 * half]), narrow<BF16>(out[n][2 * half + 1])}};
          store_vector(to + n * 8 + layout.sum_column(0), pair);
        }
      }
    }

    /// What the state after the chunk takes of each token, in two parts over those of the state.
    DS_DEVICE void fade_written() {
      const float last = decay.load(kChunk - 1);
      for (int i = block.warp(); i < kChunk; i += kWarps) {
        const float scale = std::exp(last - decay.load(i)) * key_scale.load(i);
        split(i, block.lane(), scale * written.load(i * kColumns + block.lane()));
      }
    }

    DS_DEVICE void advance(State& state) {
      const float keep = std::exp(decay.load(kChunk - 1));
      DS_UNROLL
      for (int i = 0; i < kStateTiles; ++i) {
        DS_UNROLL
        for (int n = 0; n < kColumns / 8; ++n) {
          DS_UNROLL
          for (int j = 0; j < 4; ++j)
            state[i][n][j] *= keep;
        }
        DS_UNROLL
        for (int k = 0; k < kChunk; k += 16) {
          uint32_t keys[4], right[2][2];
          load_left_transposed<Ek>(block, keys, key, (block.warp() * kStateTiles + i) * 16, k);
          DS_UNROLL
          for (int part = 0; part < 2; ++part) {
            DS_UNROLL
            for (int n = 0; n < kColumns / 8; n += 2) {
              load_right<kColumns>(block, right, part == 0 ? high : low, k, n * 8);
              block.multiply(state[i][n], keys, right[0]);
              block.multiply(state[i][n + 1], keys, right[1]);
            }
          }
        }
      }
    }
  };
};

template <class Machine>
void run_delta_chunks(Machine& machine, const DeltaChunkParams& params) {
  const int64_t blocks =
      params.num_spans * params.Hv * (params.Ev / DeltaChunkKernel<64>::kColumns);
  if (params.Ek == 64) machine.launch(blocks, DeltaChunkKernel<64>{params});
  if (params.Ek == 128) machine.launch(blocks, DeltaChunkKernel<128>{params});
}

}  // namespace draftsmith::ops::cuda
