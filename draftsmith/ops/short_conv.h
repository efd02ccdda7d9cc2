// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include <torch/types.h>

#include "draftsmith/ops/span.h"
#include "draftsmith/ops/tree_layout.h"

namespace draftsmith::ops {

/// Which inputs each token's convolution takes, the oldest first: a token of the same row, or
/// -1 for the newest of the row's window, -2 for the one before it, ..., or kNoSource for zeros.
struct ConvSources {
  int64_t B = 0, T = 0, taps = 0;
  std::vector<int64_t> index;  // [B, T, taps]
};
inline constexpr int64_t kNoSource = std::numeric_limits<int64_t>::min();

/// Tokens of a span see only their own span.
ConvSources span_sources(const std::vector<Span>& spans, int64_t B, int64_t T, int64_t taps);
/// T tokens that follow the window, one after another.
ConvSources line_sources(int64_t B, int64_t T, int64_t taps);
/// Nodes that follow their ancestors, and these the window.
ConvSources tree_sources(const TreeLayout& tree, int64_t taps);

/// silu of a causal convolution of every channel with its own filter: sum_j weight[j] input_j,
/// the last tap on the token itself. Sums in float32 are rounded to the dtype before silu.
///
/// Gradient: none.
torch::Tensor short_conv(         // [B, T, C]
    const torch::Tensor& x,       // [B, T, C]
    const torch::Tensor& weight,  // [taps, C] as x
    const torch::Tensor& window,  // [B, taps - 1, C] as x, or undefined without a window
    const ConvSources& sources);

/// The same by libtorch's operations, which every device has; on a GPU `short_conv` is this.
/// Memory: two arrays [B T, C] in the compute type.
torch::Tensor short_conv_plain(
    const torch::Tensor& x,
    const torch::Tensor& weight,
    const torch::Tensor& window,
    const ConvSources& sources);

/// The window after the tokens of `paths[b]` (numbers into T) have followed the old one.
torch::Tensor advance_conv_window(  // [B, taps - 1, C]
    const torch::Tensor& window,    // [B, taps - 1, C]
    const torch::Tensor& x,         // [B, T, C]
    const std::vector<std::vector<int64_t>>& paths);

}  // namespace draftsmith::ops
