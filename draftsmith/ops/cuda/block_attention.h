// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Attention of draft blocks on a CUDA device, on plain pointers. Rows of a key head's queries are
/// counted (block, slot, head): row r of sequence b is slot r / (H / G), head r % (H / G) of the
/// key head's. Positions and counts within a sequence fit 32 bits; offsets have 64.
namespace draftsmith::ops::cuda {

/// The context that slot 0 of a block would see without a window.
struct SeenContext {
  int32_t begin, end;
};

/// Rows that a thread block computes together.
struct QueryTile {
  int32_t sequence;
  int32_t first, end;                  // rows
  int32_t context_begin, context_end;  // what any of them sees
  int32_t common_begin, common_end;    // what all of them see
};

/// Keys whose gradients a thread block sums up, over the rows of some query tiles, in their order.
struct KeyTile {
  int32_t sequence;
  int32_t is_own;                // slots of the blocks, else positions of the context
  int32_t begin, end;            // keys
  int32_t first_tile, end_tile;  // of `gradient_tiles`; some may see nothing of the keys
};

/// Where ops/block_plan.h has put the tiles.
struct BlockPlanView {
  const SeenContext* blocks;       // [B, N]
  const QueryTile* forward_tiles;  // most work first
  int64_t num_forward_tiles;
  const QueryTile* gradient_tiles;  // in the order of sequences and rows
  const int32_t* gradient_order;    // most work first
  int64_t num_gradient_tiles;
  const KeyTile* key_tiles;  // most work first; together all keys
  int64_t num_key_tiles;
};

struct BlockAttentionParams {
  const void* query;          // [B, N K, H, E] bf16
  const void* context_key;    // [B, S, G, E] bf16
  const void* context_value;  // as context_key
  const void* block_key;      // [B, N K, G, E] bf16
  const void* block_value;    // as block_key
  int64_t B, S, N, K, H, G, E;
  int64_t window;  // 0: none
  bool is_causal_block;
  BlockPlanView plan;
  void* out;       // [B, N K, H, E] bf16; rows of blocks that are not kept are not written
  float* log_sum;  // [B, N K, H] log sum exp of the scaled scores; as `out`
};

struct BlockAttentionGradientParams {
  BlockAttentionParams forward;  // `out` and `log_sum` as the forward wrote them
  const void* out_gradient;      // [B, N K, H, E] bf16
  float* delta;                  // [B, N K, H] scratch
  void* query_gradient;          // [B, N K, H, E] bf16; rows of blocks not kept are not written
  void* context_key_gradient;    // [B, S, G, E] bf16
  void* context_value_gradient;  // as context_key_gradient
  void* block_key_gradient;      // [B, N K, G, E] bf16
  void* block_value_gradient;    // as block_key_gradient
};

/// Widths of heads that have a kernel.
constexpr bool has_block_attention(int64_t E) { return E == 64 || E == 128 || E == 256; }

/// Rows of a tile: what shared memory and registers hold.
constexpr int kGradientTileRows = 64;
constexpr int kKeyTileKeys = 64;
constexpr int forward_tile_rows(int64_t E) { return E <= 128 ? 128 : 64; }

/// On the current device; the work is put on `stream` (a cudaStream_t).
/// Errors: DeviceError where a launch fails, and everywhere in a build without CUDA.
void compute_block_attention(const BlockAttentionParams& params, void* stream);
void compute_block_attention_gradient(const BlockAttentionGradientParams& params, void* stream);

}  // namespace draftsmith::ops::cuda
