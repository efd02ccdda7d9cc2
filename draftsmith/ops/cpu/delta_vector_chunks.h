// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "draftsmith/ops/kernels.h"

namespace draftsmith::ops {

struct DeltaVectorChunkParams {
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

/// The delta rule in chunks by vector instructions, in the compute type throughout, for heads of any
/// width. One task per span and value head.
void compute_delta_vector_chunks(const DeltaVectorChunkParams& params);

}  // namespace draftsmith::ops
