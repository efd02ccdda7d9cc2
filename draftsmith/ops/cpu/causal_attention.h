// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "draftsmith/ops/span.h"

namespace draftsmith::ops {

/// Keys and values of `num_spans` spans in the order in which products read them. Spans are filled up
/// with zeros to whole panels of 32 tokens.
struct CausalAttentionParams {
  const void* query;  // [B, S, H, E] bf16
  const void* key;    // [B, S, G, E] bf16
  const void* value;  // [B, S, G, E] bf16
  const Span* spans;  // [num_spans]
  int64_t num_spans;
  int64_t S, H, G, E;
  uint32_t* packed_keys;    // [G, panels, E / 2, 32] of each span after the other
  uint32_t* packed_values;  // [G, E / 32, panels 16, 32] of each span after the other
  void* out;                // [B, S, H, E] bf16, written within the spans
};

/// Whether this processor has what `compute_causal_attention` needs, for H query and G key heads of
/// width E.
bool has_causal_attention(int64_t H, int64_t G, int64_t E);

/// Panels of 32 tokens that all spans take.
int64_t count_key_panels(const Span* spans, int64_t num_spans);

/// Threads take tiles of queries one after another.
void compute_causal_attention(const CausalAttentionParams& params);

}  // namespace draftsmith::ops
