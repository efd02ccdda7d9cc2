// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <torch/types.h>

#include "draftsmith/ops/span.h"

namespace draftsmith::ops {

/// Attention of every token of a span to the span's tokens before it and to itself. Softmax in
/// float32; query head h uses key head h / (H / G). Tokens outside the spans get zeros.
///
/// bfloat16 on a CPU with dot products of pairs (AVX-512 BF16) and no tile unit runs in a kernel of
/// its own, whose results do not depend on what stands beside a span. All else is
/// `causal_attention_plain`.
///
/// Gradient: none. Memory: keys and values once more, packed.
torch::Tensor causal_attention(  // [B, S, H, E]
    const torch::Tensor& query,  // [B, S, H, E]
    const torch::Tensor& key,    // [B, S, G, E] as query
    const torch::Tensor& value,  // [B, S, G, E] as query
    const std::vector<Span>& spans);

/// The same by libtorch on any device, all rows at once where the spans are whole rows, else one span
/// after the other. Memory there: the output of one span.
torch::Tensor causal_attention_plain(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const std::vector<Span>& spans);

/// Whether `causal_attention` has the kernel for such heads here.
bool has_causal_kernel(
    int64_t heads,
    int64_t key_heads,
    int64_t head_dim,
    torch::ScalarType dtype,
    torch::Device device);

}  // namespace draftsmith::ops
