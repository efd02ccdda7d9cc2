// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "draftsmith/ops/span.h"

/// The kernels that every device defines, on plain pointers: torch stops at the op. Arrays are
/// dense and row-major; sizes and indices are 64-bit.
namespace draftsmith::ops {

/// How an array's elements are stored. Statistics of kF64 arrays are double, else float.
enum class Storage { kBF16, kF32, kF64 };

struct RmsNormParams {
  Storage storage;
  const void* x;       // [rows, width]
  const void* weight;  // [width]
  int64_t rows;
  int64_t width;
  double eps;
  void* out;      // [rows, width]
  double* scale;  // [rows] 1 / sqrt(mean(x^2) + eps), or null

  bool is_zero_centred = false;  // times 1 + weight, and rounded last
  const void* gate = nullptr;    // [rows, width] if set, times silu(gate) at the end
};

void compute_rms_norm(const RmsNormParams& params);

struct RmsNormGradientParams {
  Storage storage;
  const void* x;             // [rows, width]
  const void* weight;        // [width]
  const double* scale;       // [rows] from compute_rms_norm
  const void* out_gradient;  // [rows, width]
  int64_t rows;
  int64_t width;
  void* x_gradient;         // [rows, width]
  double* weight_gradient;  // [width]
};

/// The sum over rows has a fixed order, whatever the number of threads.
void compute_rms_norm_gradient(const RmsNormGradientParams& params);

struct RotaryParams {
  Storage storage;
  const void* x;    // [B, S, H, E]
  const void* cos;  // [B or 1, S, rotated / 2]
  const void* sin;  // as cos
  int64_t B, S, H, E;
  int64_t rotated;        // the first elements of each head that turn; the others are copied
  bool has_batch_angles;  // cos and sin have B rows
  bool is_inverse;        // rotate back: the gradient
  void* out;              // [B, S, H, E]
};

void compute_rotary(const RotaryParams& params);

struct SwigluParams {
  Storage storage;
  const void* gate;  // [count]
  const void* up;    // [count]
  int64_t count;
  void* out;                           // [count] silu(gate) up
  const void* out_gradient = nullptr;  // [count]; if set, the two gradients are written instead
  void* gate_gradient = nullptr;
  void* up_gradient = nullptr;
};

void compute_swiglu(const SwigluParams& params);

struct FewRowLinearParams {
  Storage storage;
  const void* x;       // [rows, in], rows few
  const void* weight;  // [out_features, in]
  int64_t rows;
  int64_t in;
  int64_t out_features;
  void* out;  // [rows, out_features]
};

void compute_few_row_linear(const FewRowLinearParams& params);

struct CachedAttentionParams {
  Storage storage;
  const void* query;       // [B, T, H, E]
  const void* key;         // [B, capacity, G, E]
  const void* value;       // [B, capacity, G, E]
  const int64_t* lengths;  // [B] keys before those of the T new tokens
  int64_t B, T, H, G, E, capacity;
  void* out;  // [B, T, H, E]

  const uint8_t* ancestors = nullptr;  // [B, T, T] 1 where query t sees new token j; null: j <= t
  bool is_block = false;  // without ancestors: a query sees all new tokens
  int64_t window = 0;     // query t sees cached token j if lengths[b] + t - j < window; 0 = all
};

void compute_cached_attention(const CachedAttentionParams& params);

/// Scores of the queries of a tile of draft blocks. Row r sees the columns [lo, hi) of two ranges:
/// its context's and its own block's.
struct BlockRows {
  Storage storage;
  int64_t rows;
  int64_t width;          // columns
  const int64_t* ranges;  // [rows, 4] context lo, hi, own lo, hi
  double scale;
};

struct BlockSoftmaxParams {
  BlockRows rows;
  void* scores;     // [rows, width] in: q k^T; out: softmax(scale q k^T), 0 where nothing is seen
  double* log_sum;  // [rows] log sum exp of the scaled scores
};

/// Runs in the calling thread.
void compute_block_softmax(const BlockSoftmaxParams& params);

struct BlockSoftmaxGradientParams {
  BlockRows rows;
  void* scores;           // [rows, width] in: q k^T; out: softmax
  const double* log_sum;  // [rows] from compute_block_softmax
  const double* delta;    // [rows] sum of out x out gradient
  void* gradient;         // [rows, width] in: out gradient v^T; out: gradient of q k^T
};

/// Runs in the calling thread.
void compute_block_softmax_gradient(const BlockSoftmaxGradientParams& params);

struct AddToSumsParams {
  Storage storage;     // of values
  const void* values;  // [count]
  void* sums;          // [count] kF64 for kF64, else kF32
  int64_t count;
};

/// sums += values. Runs in the calling thread.
void add_to_sums(const AddToSumsParams& params);

struct ShortConvParams {
  Storage storage;
  const void* x;           // [B, T, C]
  const void* window;      // [B, taps - 1, C] inputs before x, or null
  const void* weight;      // [taps, C]
  const int64_t* sources;  // [B, T, taps] see ops/short_conv.h
  int64_t B, T, C, taps;   // taps <= 16
  void* out;               // [B, T, C]
};

void compute_short_conv(const ShortConvParams& params);

struct DeltaWalkParams {
  Storage storage;        // of mixed and out; the rest is kF64 for kF64, else kF32
  const void* mixed;      // [B, T, 2 Hk Ek + Hv Ev]
  const void* decay;      // [B, T, Hv]
  const void* beta;       // [B, T, Hv]
  const int64_t* counts;  // [B] tokens of each row
  const int64_t* order;   // [B, T] nodes depth first; null: a line
  const int64_t* depths;  // [B, T] with `order`
  int64_t B, T, Hk, Hv, Ek, Ev;
  void* state;  // [B, Hv, Ek, Ev] read; for a line overwritten by the state after it
  void* out;    // [B, T, Hv, Ev]
};

/// One task per row and value head.
void compute_delta_walk(const DeltaWalkParams& params);

struct DeltaChunkParams {
  Storage storage;    // of mixed and out; the rest is kF64 for kF64, else kF32
  const void* mixed;  // [B, T, 2 Hk Ek + Hv Ev]
  const void* decay;  // [B, T, Hv]
  const void* beta;   // [B, T, Hv]
  const Span* spans;  // [num_spans]
  int64_t num_spans;
  int64_t T, Hk, Hv, Ek, Ev;
  void* state;  // [B, Hv, Ek, Ev] before and after the only span of each row, or null: zeros
  void* out;    // [B, T, Hv, Ev], written within the spans
};

/// Whether this processor has what `compute_delta_tile_chunks` needs, for heads of this width.
bool has_delta_tile_chunks(int64_t Ek, int64_t Ev);

/// The delta rule in chunks on the tile unit, of kBF16. One task per span and value head, as below.
void compute_delta_tile_chunks(const DeltaChunkParams& params);

/// The same by vector instructions, in the compute type throughout, for heads of any width.
void compute_delta_vector_chunks(const DeltaChunkParams& params);

struct TopKParams {
  Storage storage;     // kBF16 or kF32
  const void* logits;  // [rows, V]
  int64_t rows;
  int64_t vocab_size;  // V
  int64_t k;           // 1 .. V
  int64_t* ids;        // [rows, k] best first, the smaller id on ties
  float* log_probs;    // [rows, k]
};

void compute_top_k(const TopKParams& params);

/// Softmax statistics of the rows of a [rows, width] array of logits.
struct SoftmaxStatistics {
  double* log_sum;  // [rows] log sum exp
  int64_t* argmax;  // [rows] lowest index on ties
};

struct TeacherRowsParams {
  Storage storage;
  const void* logits;  // [rows, V]
  int64_t rows;
  int64_t vocab_size;  // V
  SoftmaxStatistics out;
};

/// Statistics of teacher logits; each distinct teacher row is looked at once.
void compute_teacher_rows(const TeacherRowsParams& params);

struct HeadRowsParams {
  Storage storage;
  void* logits;  // [rows, V] in: student logits z, or z - t with a teacher; out: gradient
  int64_t rows;
  int64_t vocab_size;     // V
  const int64_t* labels;  // [rows]
  double kl_weight;
  double cap_weight;
  bool needs_gradient;
  int64_t top_k;  // at most V

  const void* teacher_logits = nullptr;   // [M, V] t, or null
  const int64_t* teacher_rows = nullptr;  // [rows] row of teacher_logits
  SoftmaxStatistics teacher = {};         // [M], from compute_teacher_rows

  double* ce;                 // [rows] -log q(label)
  double* kl;                 // [rows] KL(p || q), 0 without a teacher
  double* cap;                // [rows] entropy of q where the argmax is the label, else 0
  double* label_probability;  // [rows] q(label)
  int64_t* predicted;         // [rows] argmax of q, lowest index on ties
  int64_t* top_ids;           // [rows, top_k] largest first, lowest index first on ties
  double* top_log_probs;      // [rows, top_k] log q
};

/// One pass to find each row's largest, one to sum, one to overwrite the logits with
///   (q - [v = label]) + kl_weight (q - p) - cap_weight [correct] q (z - mean_q z).
/// With a teacher the logits hold z - t, so that the rounding of t cancels in q - p.
/// A constant added to all of z - t, or to all of t, changes nothing.
void compute_head_rows(const HeadRowsParams& params);

}  // namespace draftsmith::ops
