// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "draftsmith/ops/cuda/block_rows.cuh"

namespace draftsmith::ops::cuda {

/// A thread block per tile of queries and key head; a warp has 16 rows. Keys and values arrive in
/// turns: while scores are made, values are on their way, and keys while the values are summed up.
template <int kWidth>
struct BlockAttentionKernel {
  static constexpr int E = kWidth;
  static constexpr int kRows = forward_tile_rows(E);
  static constexpr int kThreads = kRows / 16 * kWarp;
  static constexpr int kKeys = 64;
  static constexpr int kColumns = kKeys / 8;  // of scores, in products of 8
  using Steps = KeySteps<kKeys>;
  BlockAttentionParams params;

  int64_t shared_bytes() const {
    return (kRows + 2 * kKeys) * E * static_cast<int64_t>(sizeof(BF16));
  }

  template <class Block>
  DS_DEVICE void operator()(Block& block) const {
    const auto query = block.template shared<BF16>(kRows * E);
    const auto key = block.template shared<BF16>(kKeys * E);
    const auto value = block.template shared<BF16>(kKeys * E);
    const QueryTile tile = params.plan.forward_tiles[block.index() / params.G];
    if (tile.first >= tile.end) return;  // fills the list
    const BlockRows rows(params, tile.sequence, block.index() % params.G);
    const Steps steps(tile, rows);
    const int row = block.warp() * 16;  // of the tile

    Softmax softmax(rows, tile, row, block.lane());
    float out[E / 8][4];
    set_zero(out);
    copy_queries<E, kRows, kThreads>(block, query, params.query, rows, tile.first, tile.end);
    copy_keys<E, kKeys, kThreads>(block, key, params.context_key, params.block_key, rows, steps[0]);
    block.commit_copies();
    for (int t = 0; t < steps.count(); ++t) {
      const auto step = steps[t];
      block.template wait_copies<0>();
      block.sync();  // the keys are here, and nobody reads the last values any more
      copy_keys<E, kKeys, kThreads>(
          block, value, params.context_value, params.block_value, rows, step);
      block.commit_copies();
      const bool is_seen = block.any(softmax.sees(step));
      float weights[kColumns][4];
      set_zero(weights);
      if (is_seen) {
        multiply_rows<E>(block, weights, query, row, key);
        softmax.weigh(block, weights, step, out);
      }
      block.template wait_copies<0>();
      block.sync();  // the values are here, and nobody reads the keys any more
      if (t + 1 < steps.count()) {
        copy_keys<E, kKeys, kThreads>(
            block, key, params.context_key, params.block_key, rows, steps[t + 1]);
        block.commit_copies();
      }
      if (is_seen) add_weighted_rows<E>(block, out, weights, value);
    }
    softmax.finish(block);
    store(rows, tile, row, block.lane(), out, softmax);
  }

 private:
  /// The softmax of two rows while keys go by; 4 lanes share a row. Scores are scaled to powers of
  /// 2.
  struct Softmax {
    float scale;
    int common_begin, common_end;  // context that the whole tile sees
    BlockRows::View views[2];
    float top[2], sum[2];
    int column;  // first of this lane's in 8

    DS_DEVICE Softmax(const BlockRows& rows, const QueryTile& tile, int row, int lane)
        : scale(kLog2OfE / std::sqrt(static_cast<float>(E))),
          common_begin(tile.common_begin),
          common_end(tile.common_end),
          column(MmaLayout{lane}.sum_column(0)) {
      DS_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int r = tile.first + row + MmaLayout{lane}.sum_row(2 * half);
        views[half] = r < tile.end ? rows.view(r) : BlockRows::View{};
        top[half] = -INFINITY;
        sum[half] = 0;
      }
    }

    DS_DEVICE bool sees(const typename Steps::Step& step) const {
      bool is_seen = false;
      DS_UNROLL
      for (int half = 0; half < 2; ++half) {
        const auto [begin, end] = views[half].of(step.is_own);
        is_seen = is_seen || (begin < end && begin < step.first + kKeys && end > step.first);
      }
      return is_seen;
    }

    /// Makes weights of scores, and takes `out` to the new largest score.
    template <class Block>
    DS_DEVICE void weigh(
        Block& block,
        float (&weights)[kColumns][4],
        const typename Steps::Step& step,
        float (&out)[E / 8][4]) {
      if (step.is_own || step.first < common_begin || step.first + kKeys > common_end)
        hide(weights, step);
      DS_UNROLL
      for (int half = 0; half < 2; ++half) {
        float largest = -INFINITY;
        DS_UNROLL
        for (int n = 0; n < kColumns; ++n)
          largest = fmaxf(largest, fmaxf(weights[n][2 * half], weights[n][2 * half + 1]));
        largest = fmaxf(largest, block.shuffle_xor(largest, 1));
        largest = fmaxf(largest, block.shuffle_xor(largest, 2));
        largest = fmaxf(top[half], largest * scale);
        const float shift = largest == -INFINITY ? 0 : largest;  // nothing seen yet
        const float fade = exp2_fast(top[half] - shift);
        top[half] = largest;
        float added = 0;
        DS_UNROLL
        for (int n = 0; n < kColumns; ++n) {
          DS_UNROLL
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            weights[n][i] = exp2_fast(weights[n][i] * scale - shift);
            added += weights[n][i];
          }
        }
        sum[half] = sum[half] * fade + added;
        DS_UNROLL
        for (int n = 0; n < E / 8; ++n) {
          out[n][2 * half] *= fade;
          out[n][2 * half + 1] *= fade;
        }
      }
    }

    DS_DEVICE void hide(float (&scores)[kColumns][4], const typename Steps::Step& step) const {
      DS_UNROLL
      for (int half = 0; half < 2; ++half) {
        const auto seen = views[half].of(step.is_own);
        DS_UNROLL
        for (int n = 0; n < kColumns; ++n) {
          DS_UNROLL
          for (int i = 0; i < 2; ++i) {
            if (!seen.has(step.first + n * 8 + column + i)) scores[n][2 * half + i] = -INFINITY;
          }
        }
      }
    }

    template <class Block>
    DS_DEVICE void finish(Block& block) {
      DS_UNROLL
      for (int half = 0; half < 2; ++half) {
        sum[half] += block.shuffle_xor(sum[half], 1);
        sum[half] += block.shuffle_xor(sum[half], 2);
      }
    }
  };

  DS_DEVICE void store(
      const BlockRows& rows,
      const QueryTile& tile,
      int row,
      int lane,
      const float (&out)[E / 8][4],
      const Softmax& softmax) const {
    BF16* to[2];
    float scale[2];
    DS_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int r = tile.first + row + MmaLayout{lane}.sum_row(2 * half);
      const bool is_valid = r < tile.end;
      const int64_t place = is_valid ? rows.place(r) : 0;
      to[half] = is_valid ? static_cast<BF16*>(params.out) + place * E : nullptr;
      scale[half] = 1 / softmax.sum[half];
      if (is_valid && lane % 4 == 0)
        params.log_sum[place] = (softmax.top[half] + std::log2(softmax.sum[half])) * kLogOf2;
    }
    store_rows(lane, out, to, scale);
  }
};

/// `run(kernel of this width)`; heads of other widths have none.
template <template <int> class Kernel, class Params, class Run>
void choose_width(int64_t E, const Params& params, const Run& run) {
  if (E == 64) run(Kernel<64>{params});
  if (E == 128) run(Kernel<128>{params});
  if (E == 256) run(Kernel<256>{params});
}

template <class Machine>
void run_block_attention(Machine& machine, const BlockAttentionParams& params) {
  choose_width<BlockAttentionKernel>(params.E, params, [&](const auto& kernel) {
    machine.launch(params.plan.num_forward_tiles * params.G, kernel);
  });
}

}  // namespace draftsmith::ops::cuda
