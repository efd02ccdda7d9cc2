// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "draftsmith/ops/cuda/block_attention.cuh"

namespace draftsmith::ops::cuda {

/// delta = sum of out x out gradient of every row.
template <int E>
struct BlockDeltaKernel {
  static constexpr int kThreads = 256;
  static constexpr int kLanes = E / 8;  // of a row, 16 bytes each
  static constexpr int kRows = kThreads / kLanes;
  BlockAttentionGradientParams params;

  int64_t num_rows() const {
    return params.forward.B * params.forward.N * params.forward.K * params.forward.H;
  }
  int64_t shared_bytes() const { return 0; }

  template <class Block>
  DS_DEVICE void operator()(Block& block) const {
    const int64_t r = block.index() * kRows + block.thread() / kLanes;
    const int64_t place = r * E + block.thread() % kLanes * 8;
    const BlockAttentionParams& p = params.forward;
    const bool is_valid = r < p.B * p.N * p.K * p.H;
    float sum = 0;
    if (is_valid) {
      const auto out = load_vector<8>(static_cast<const BF16*>(p.out) + place);
      const auto gradient = load_vector<8>(static_cast<const BF16*>(params.out_gradient) + place);
      DS_UNROLL
      for (int i = 0; i < 8; ++i)
        sum += widen(out.values[i]) * widen(gradient.values[i]);
    }
    DS_UNROLL
    for (int mask = kLanes / 2; mask > 0; mask /= 2)
      sum += block.shuffle_xor(sum, mask);
    if (is_valid && block.thread() % kLanes == 0) params.delta[r] = sum;
  }
};

/// Turns a score into its weight, and the weight's gradient into the score's but for the scale.
struct ScoreGradient {
  float scale, log_sum, delta;  // in powers of 2, but for delta

  DS_DEVICE void operator()(bool is_seen, float& score, float& gradient) const {
    score = is_seen ? exp2_fast(score * scale - log_sum) : 0;
    gradient = score * (gradient - delta);
  }
};

/// Gradient of the queries: a thread block per tile of queries and key head; a warp has 16 rows.
/// Keys and values of the next step are on their way while this one's are used.
template <int kWidth>
struct QueryGradientKernel {
  static constexpr int E = kWidth;
  static constexpr int kRows = kGradientTileRows;
  static constexpr int kThreads = kRows / 16 * kWarp;
  static constexpr int kKeys = E <= 128 ? 32 : 16;
  static constexpr int kColumns = kKeys / 8;
  using Steps = KeySteps<kKeys>;
  BlockAttentionGradientParams params;

  int64_t shared_bytes() const {
    return (2 * kRows + 4 * kKeys) * E * static_cast<int64_t>(sizeof(BF16));
  }

  template <class Block>
  DS_DEVICE void operator()(Block& block) const {
    const BlockAttentionParams& p = params.forward;
    const auto query = block.template shared<BF16>(kRows * E);
    const auto upstream = block.template shared<BF16>(kRows * E);
    const auto keys = block.template shared<BF16>(2 * kKeys * E);
    const auto values = block.template shared<BF16>(2 * kKeys * E);
    const QueryTile tile = p.plan.gradient_tiles[p.plan.gradient_order[block.index() / p.G]];
    if (tile.first >= tile.end) return;  // fills the list
    const BlockRows rows(p, tile.sequence, block.index() % p.G);
    const Steps steps(tile, rows);
    const int row = block.warp() * 16;
    const MmaLayout layout{block.lane()};
    const auto start_copies = [&](int t) {
      const int64_t half = t % 2 * kKeys * E;
      copy_keys<E, kKeys, kThreads>(
          block, keys.part(half, kKeys * E), p.context_key, p.block_key, rows, steps[t]);
      copy_keys<E, kKeys, kThreads>(
          block, values.part(half, kKeys * E), p.context_value, p.block_value, rows, steps[t]);
    };

    const float scale = 1 / std::sqrt(static_cast<float>(E));
    BlockRows::View views[2];
    ScoreGradient gradients[2];
    BF16* to[2];
    DS_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int r = tile.first + row + layout.sum_row(2 * half);
      const bool is_valid = r < tile.end;
      const int64_t place = is_valid ? rows.place(r) : 0;
      views[half] = is_valid ? rows.view(r) : BlockRows::View{};
      gradients[half] = {
          scale * kLog2OfE, is_valid ? p.log_sum[place] * kLog2OfE : 0,
          is_valid ? params.delta[place] : 0};
      to[half] = is_valid ? static_cast<BF16*>(params.query_gradient) + place * E : nullptr;
    }
    float sums[E / 8][4];
    set_zero(sums);
    copy_queries<E, kRows, kThreads>(block, query, p.query, rows, tile.first, tile.end);
    copy_queries<E, kRows, kThreads>(
        block, upstream, params.out_gradient, rows, tile.first, tile.end);
    start_copies(0);
    block.commit_copies();
    for (int t = 0; t < steps.count(); ++t) {
      block.template wait_copies<0>();
      block.sync();  // this step's rows are here, and nobody reads the last step's any more
      if (t + 1 < steps.count()) start_copies(t + 1);
      block.commit_copies();
      const auto step = steps[t];
      const int64_t half_place = t % 2 * kKeys * E;
      const auto key = keys.part(half_place, kKeys * E);
      const auto value = values.part(half_place, kKeys * E);
      float scores[kColumns][4], score_gradients[kColumns][4];
      set_zero(scores);
      set_zero(score_gradients);
      multiply_rows<E>(block, scores, query, row, key);
      multiply_rows<E>(block, score_gradients, upstream, row, value);
      DS_UNROLL
      for (int half = 0; half < 2; ++half) {
        const auto seen = views[half].of(step.is_own);
        DS_UNROLL
        for (int n = 0; n < kColumns; ++n) {
          DS_UNROLL
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            const bool is_seen = seen.has(step.first + n * 8 + layout.sum_column(i));
            gradients[half](is_seen, scores[n][i], score_gradients[n][i]);
          }
        }
      }
      add_weighted_rows<E>(block, sums, score_gradients, key);
    }
    block.template wait_copies<0>();
    store_rows(block.lane(), sums, to, {scale, scale});
  }
};

/// The queries that see some keys, in steps of kStep rows of one tile; a step may see none of them.
template <int kStep>
class QuerySteps {
 public:
  DS_DEVICE QuerySteps(const BlockAttentionParams& params, const KeyTile& keys)
      : params_(params), keys_(keys), next_tile_(keys.first_tile) {
    go_to_tile();
  }

  DS_DEVICE bool is_over() const { return first_ >= end_; }
  DS_DEVICE int first() const { return first_; }
  DS_DEVICE int end() const { return end_; }  // of the tile's rows

  DS_DEVICE void advance() {
    first_ += kStep;
    if (first_ >= end_) go_to_tile();
  }

 private:
  DS_DEVICE void go_to_tile() {
    first_ = end_ = 0;
    for (; next_tile_ < keys_.end_tile; ++next_tile_) {
      const QueryTile tile = params_.plan.gradient_tiles[next_tile_];
      if (!keys_.is_own && (tile.context_begin >= keys_.end || tile.context_end <= keys_.begin))
        continue;
      first_ = tile.first;
      end_ = tile.end;
      ++next_tile_;
      return;
    }
  }

  const BlockAttentionParams& params_;
  const KeyTile& keys_;
  int next_tile_;
  int first_ = 0, end_ = 0;
};

/// Gradients of keys and values: a thread block per tile of keys and key head walks over all
/// queries that see them, so that sums have one order; a warp has 16 keys. Wide heads take two of
/// these, one for the keys and one for the values, because the sums of both do not fit the
/// registers.
template <int kWidth, bool kOfKeys, bool kOfValues>
struct KeyGradientKernel {
  static constexpr int E = kWidth;
  static constexpr int kKeys = kKeyTileKeys;
  static constexpr int kThreads = kKeys / 16 * kWarp;
  static constexpr int kStep = E <= 128 ? 32 : 16;
  static constexpr int kColumns = kStep / 8;
  BlockAttentionGradientParams params;

  int64_t shared_bytes() const {
    return (2 * kKeys + 4 * kStep) * E * static_cast<int64_t>(sizeof(BF16)) +
           2 * kStep * kVectorBytes;
  }

  template <class Block>
  DS_DEVICE void operator()(Block& block) const {
    const BlockAttentionParams& p = params.forward;
    const auto key = block.template shared<BF16>(kKeys * E);
    const auto value = block.template shared<BF16>(kKeys * E);
    const auto queries = block.template shared<BF16>(2 * kStep * E);
    const auto upstreams = block.template shared<BF16>(2 * kStep * E);
    const auto notes = block.template shared<uint32_t>(2 * kStep * 4);
    const KeyTile tile = p.plan.key_tiles[block.index() / p.G];
    const BlockRows rows(p, tile.sequence, block.index() % p.G);
    const int row = block.warp() * 16;
    const MmaLayout layout{block.lane()};
    const float scale = 1 / std::sqrt(static_cast<float>(E));

    const typename KeySteps<kKeys>::Step own{tile.is_own != 0, tile.begin, tile.end};
    copy_keys<E, kKeys, kThreads>(block, key, p.context_key, p.block_key, rows, own);
    copy_keys<E, kKeys, kThreads>(block, value, p.context_value, p.block_value, rows, own);
    const auto start_step = [&](const QuerySteps<kStep>& step, int half) {
      const int first = step.first();
      const int end = step.end();
      copy_queries<E, kStep, kThreads>(
          block, queries.part(half * kStep * E, kStep * E), p.query, rows, first, end);
      copy_queries<E, kStep, kThreads>(
          block, upstreams.part(half * kStep * E, kStep * E), params.out_gradient, rows, first,
          end);
      if (block.thread() < kStep)
        notes.store_vector(
            (half * kStep + block.thread()) * 4,
            note_row(rows, tile.is_own != 0, first + block.thread(), end));
    };

    float key_sums[kOfKeys ? E / 8 : 1][4], value_sums[kOfValues ? E / 8 : 1][4];
    set_zero(key_sums);
    set_zero(value_sums);
    QuerySteps<kStep> step(p, tile);
    if (!step.is_over()) start_step(step, 0);
    block.commit_copies();
    for (int half = 0; !step.is_over(); half = 1 - half) {
      block.template wait_copies<0>();
      block.sync();  // this step's rows are here, and nobody reads the last step's any more
      step.advance();
      if (!step.is_over()) start_step(step, 1 - half);
      block.commit_copies();
      const auto query = queries.part(half * kStep * E, kStep * E);
      const auto upstream = upstreams.part(half * kStep * E, kStep * E);
      float scores[kColumns][4], gradients[kColumns][4];
      set_zero(scores);
      set_zero(gradients);
      multiply_rows<E>(block, scores, key, row, query);
      if constexpr (kOfKeys) multiply_rows<E>(block, gradients, value, row, upstream);
      DS_UNROLL
      for (int n = 0; n < kColumns; ++n) {
        DS_UNROLL
        for (int i = 0; i < 2; ++i) {
          const auto note = notes.load_vector((half * kStep + n * 8 + layout.sum_column(i)) * 4);
          const BlockRows::Interval seen{
              static_cast<int>(note.values[0]), static_cast<int>(note.values[1])};
          const ScoreGradient gradient{
              scale * kLog2OfE, bits_to_float(note.values[2]), bits_to_float(note.values[3])};
          DS_UNROLL
          for (int j = i; j < 4; j += 2) {
            const bool is_seen = seen.has(tile.begin + row + layout.sum_row(j));
            gradient(is_seen, scores[n][j], gradients[n][j]);
          }
        }
      }
      if constexpr (kOfValues) add_weighted_rows<E>(block, value_sums, scores, upstream);
      if constexpr (kOfKeys) add_weighted_rows<E>(block, key_sums, gradients, query);
    }
    block.template wait_copies<0>();
    if constexpr (kOfKeys)
      store(
          block, rows, tile, row, key_sums, scale, params.context_key_gradient,
          params.block_key_gradient);
    if constexpr (kOfValues)
      store(
          block, rows, tile, row, value_sums, 1, params.context_value_gradient,
          params.block_value_gradient);
  }

 private:
  /// What the walk needs of a row: the keys [begin, end) that it sees, log sum, delta.
  DS_DEVICE Vector<uint32_t> note_row(const BlockRows& rows, bool is_own, int r, int end) const {
    if (r >= end) return {};  // sees no key
    const auto seen = rows.view(r).of(is_own);
    const int64_t place = rows.place(r);
    return {
        {static_cast<uint32_t>(seen.begin), static_cast<uint32_t>(seen.end),
         float_to_bits(params.forward.log_sum[place] * kLog2OfE),
         float_to_bits(params.delta[place])}};
  }

  template <class Block>
  DS_DEVICE void store(
      Block& block,
      const BlockRows& rows,
      const KeyTile& tile,
      int row,
      const float (&sums)[E / 8][4],
      float scale,
      void* context,
      void* own) const {
    const BlockAttentionParams& p = params.forward;
    const int64_t length = tile.is_own ? p.N * p.K : p.S;
    BF16* to[2];
    DS_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int i = tile.begin + row + MmaLayout{block.lane()}.sum_row(2 * half);
      to[half] = i < tile.end
                     ? static_cast<BF16*>(tile.is_own ? own : context) + rows.key_offset(i, length)
                     : nullptr;
    }
    store_rows(block.lane(), sums, to, {scale, scale});
  }
};

template <class Machine>
void run_block_attention_gradient(Machine& machine, const BlockAttentionGradientParams& params) {
  const BlockPlanView& plan = params.forward.plan;
  const int64_t G = params.forward.G;
  const int64_t E = params.forward.E;
  choose_width<BlockDeltaKernel>(E, params, [&](const auto& kernel) {
    machine.launch(count_blocks(kernel.num_rows(), kernel.kRows), kernel);
  });
  choose_width<QueryGradientKernel>(
      E, params, [&](const auto& kernel) { machine.launch(plan.num_gradient_tiles * G, kernel); });
  const int64_t num_key_blocks = plan.num_key_tiles * G;
  if (E == 64) machine.launch(num_key_blocks, KeyGradientKernel<64, true, true>{params});
  if (E == 128) machine.launch(num_key_blocks, KeyGradientKernel<128, true, true>{params});
  if (E == 256) {
    machine.launch(num_key_blocks, KeyGradientKernel<256, true, false>{params});
    machine.launch(num_key_blocks, KeyGradientKernel<256, false, true>{params});
  }
}

}  // namespace draftsmith::ops::cuda
