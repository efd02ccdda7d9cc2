// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/block_attention.h"

#include <cmath>
#include <limits>

#include "draftsmith/ops/checks.h"

namespace draftsmith::ops {

torch::Tensor make_block_mask(
    const BlockLayout& layout,
    const BlockVisibility& visibility,
    int64_t context_length) {
  const auto [B, N] = dims<2>(layout.anchors, "anchors");
  const int64_t S = context_length;
  const int64_t K = layout.block_size;
  const auto ids = torch::TensorOptions(torch::kLong).device(layout.anchors.device());

  const auto context = torch::arange(S, ids).view({1, 1, 1, S});
  const auto slot = torch::arange(K, ids).view({1, 1, K, 1});
  const auto anchors = layout.anchors.view({B, N, 1, 1});
  auto sees_context = (context < anchors)
                          .logical_and(context >= layout.context_begin.view({B, N, 1, 1}))
                          .expand({B, N, K, S});
  if (visibility.window > 0) {
    sees_context = sees_context.logical_and(anchors + slot - context < visibility.window);
  }

  const auto block = torch::arange(N, ids);
  auto sees_block = (block.view({N, 1, 1, 1}) == block.view({1, 1, N, 1})).expand({N, K, N, K});
  if (visibility.is_causal_block) {
    const auto slots = torch::arange(K, ids);
    sees_block = sees_block.logical_and(slots.view({1, K, 1, 1}) >= slots.view({1, 1, 1, K}));
  }

  const auto all = torch::cat(
      {sees_context.reshape({B, N * K, S}),
       sees_block.reshape({1, N * K, N * K}).expand({B, N * K, N * K})},
      -1);
  return all.view({B, N, K, S + N * K})
      .logical_and(layout.keep.to(torch::kBool).view({B, N, 1, 1}))
      .view({B, N * K, S + N * K});
}

torch::Tensor block_attention(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const torch::Tensor& mask) {
  const auto [B, Q, H, E] = dims<4>(query, "query");
  const auto [Bk, L, G, Ek] = dims<4>(key, "key");
  check_shape(key, {B, L, G, E}, "key");
  check_shape(value, {B, L, G, E}, "value");
  check_shape(mask, {B, Q, L}, "attention mask");

  const int64_t repeat = H / G;
  const auto statistics = query.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  // Heads that share a key head stand side by side as rows, so keys are never expanded.
  const auto rows =
      query.view({B, Q, G, repeat, E}).permute({0, 2, 3, 1, 4}).reshape({B * G, repeat * Q, E});
  const auto keys = key.permute({0, 2, 3, 1}).reshape({B * G, E, L});
  const auto values = value.permute({0, 2, 1, 3}).reshape({B * G, L, E});
  const auto hidden = mask.logical_not().view({B, 1, 1, Q, L});

  // A finite lowest value and a zero afterwards: with -inf a row that sees nothing is NaN, and
  // its gradient poisons real rows through 0 * NaN.
  const auto scores = (torch::bmm(rows, keys).to(statistics) / std::sqrt(static_cast<double>(E)))
                          .view({B, G, repeat, Q, L})
                          .masked_fill(hidden, std::numeric_limits<float>::lowest());
  const auto weights = torch::softmax(scores, -1).masked_fill(hidden, 0).to(query.scalar_type());
  return torch::bmm(weights.view({B * G, repeat * Q, L}), values)
      .view({B, G, repeat, Q, E})
      .permute({0, 3, 1, 2, 4})
      .reshape({B, Q, H, E});
}

}  // namespace draftsmith::ops
