// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "draftsmith/ops/cuda/block_attention.h"
#include "draftsmith/ops/cuda/fragments.cuh"

namespace draftsmith::ops::cuda {

constexpr float kLog2OfE = 1.44269504F;
constexpr float kLogOf2 = 0.693147181F;

/// Where the rows of one sequence and key head stand, and what they see.
struct BlockRows {
  const BlockAttentionParams& params;
  int sequence;
  int head;    // key head
  int repeat;  // query heads per key head

  DS_DEVICE BlockRows(const BlockAttentionParams& p, int sequence, int64_t head)
      : params(p),
        sequence(sequence),
        head(static_cast<int>(head)),
        repeat(static_cast<int>(p.H / p.G)) {}

  /// Of row r in an array [B, N K, H].
  DS_DEVICE int64_t place(int r) const {
    const int slot = r / repeat;
    return (sequence * params.N * params.K + slot) * params.H + head * repeat + (r - slot * repeat);
  }

  /// Of key i in an array [B, length, G, E].
  DS_DEVICE int64_t key_offset(int i, int64_t length) const {
    return ((sequence * length + i) * params.G + head) * params.E;
  }

  struct Interval {
    int begin, end;
    DS_DEVICE bool has(int key) const { return key >= begin && key < end; }
  };
  /// The keys that a row sees, of the context and of its own block.
  struct View {
    Interval context, own;
    DS_DEVICE Interval of(bool is_own) const { return is_own ? own : context; }
  };
  DS_DEVICE View view(int r) const {
    const int K = static_cast<int>(params.K);
    const int slot = r / repeat;
    const int n = slot / K;
    const int k = slot - n * K;
    const SeenContext seen = params.plan.blocks[sequence * params.N + n];
    int begin = seen.begin;
    if (params.window > 0) {
      const int64_t first = seen.end + k - params.window + 1;
      if (first > begin) begin = first < seen.end ? static_cast<int>(first) : seen.end;
    }
    return {{begin, seen.end}, {n * K, params.is_causal_block ? slot + 1 : (n + 1) * K}};
  }

  /// Slots of the blocks that rows [first, end) belong to.
  DS_DEVICE int first_slot(int first) const { return first_row_of_block(first) / repeat; }
  DS_DEVICE int end_slot(int end) const { return first_slot(end - 1) + static_cast<int>(params.K); }

 private:
  DS_DEVICE int first_row_of_block(int r) const {
    const int rows = static_cast<int>(params.K) * repeat;
    return r / rows * rows;
  }
};

/// The keys of a tile of queries in steps of kKeys: those of the context, then those of its blocks.
template <int kKeys>
class KeySteps {
 public:
  struct Step {
    bool is_own;
    int first;  // key
    int end;    // of those that any query sees; past it there may be others, or none
  };

  DS_DEVICE KeySteps(const QueryTile& tile, const BlockRows& rows)
      : context_begin_(tile.context_begin),
        context_end_(tile.context_end),
        own_begin_(rows.first_slot(tile.first)),
        own_end_(rows.end_slot(tile.end)),
        num_context_((context_end_ - context_begin_ + kKeys - 1) / kKeys),
        count_(num_context_ + (own_end_ - own_begin_ + kKeys - 1) / kKeys) {}

  DS_DEVICE int count() const { return count_; }
  DS_DEVICE Step operator[](int t) const {
    if (t < num_context_) return {false, context_begin_ + t * kKeys, context_end_};
    return {true, own_begin_ + (t - num_context_) * kKeys, own_end_};
  }

 private:
  int context_begin_, context_end_, own_begin_, own_end_;
  int num_context_, count_;
};

/// Starts the copy of a step's keys, or of its values.
template <int E, int kKeys, int kThreads, class Block, class Tile>
DS_DEVICE void copy_keys(
    Block& block,
    const Tile& tile,
    const void* context,
    const void* own,
    const BlockRows& rows,
    const typename KeySteps<kKeys>::Step& step) {
  const auto* base = static_cast<const BF16*>(step.is_own ? own : context);
  const int64_t length = step.is_own ? rows.params.N * rows.params.K : rows.params.S;
  copy_rows<E, kKeys, kThreads>(block, tile, base, [&](int i) {
    return step.first + i < step.end ? rows.key_offset(step.first + i, length) : int64_t{-1};
  });
}

/// Starts the copy of rows [first, first + kRows) of an array of queries, zeros from `end` on.
template <int E, int kRows, int kThreads, class Block, class Tile>
DS_DEVICE void copy_queries(
    Block& block,
    const Tile& tile,
    const void* from,
    const BlockRows& rows,
    int first,
    int end) {
  copy_rows<E, kRows, kThreads>(block, tile, static_cast<const BF16*>(from), [&](int i) {
    return first + i < end ? rows.place(first + i) * E : int64_t{-1};
  });
}

/// Writes the two rows of `sums` that this lane holds parts of, times `scale`.
template <int kColumns>
DS_DEVICE void store_rows(
    int lane,
    const float (&sums)[kColumns][4],
    BF16* const (&to)[2],  // where the rows begin, null for none
    const float (&scale)[2]) {
  const MmaLayout layout{lane};
  DS_UNROLL
  for (int half = 0; half < 2; ++half) {
    if (to[half] == nullptr) continue;
    DS_UNROLL
    for (int n = 0; n < kColumns; ++n) {
      const Vector<BF16, 2> pair{
          {narrow<BF16>(sums[n][2 * half] * scale[half]),
           narrow<BF16>(sums[n][2 * half + 1] * scale[half])}};
      store_vector(to[half] + n * 8 + layout.sum_column(0), pair);
    }
  }
}

}  // namespace draftsmith::ops::cuda
