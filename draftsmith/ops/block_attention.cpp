// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/block_attention.h"

#include <cmath>
#include <limits>

#include <torch/csrc/autograd/custom_function.h>

#include "draftsmith/ops/block_methods.h"
#include "draftsmith/ops/checks.h"

namespace draftsmith::ops {
namespace {

using torch::Tensor;

void check_inputs(const BlockAttentionInputs& inputs, const BlockLayout& layout) {
  const auto [B, Q, H, E] = dims<4>(inputs.query, "query");
  const auto [Bc, S, G, Ec] = dims<4>(inputs.context_key, "context_key");
  check_shape(inputs.context_key, {B, S, G, E}, "context_key");
  check_shape(inputs.context_value, {B, S, G, E}, "context_value");
  check_shape(inputs.block_key, {B, Q, G, E}, "block_key");
  check_shape(inputs.block_value, {B, Q, G, E}, "block_value");
  for (const Tensor& other :
       {inputs.context_key, inputs.context_value, inputs.block_key, inputs.block_value})
    check_same_kind(other, inputs.query, "keys and values", "query");
  const auto [Bl, N] = dims<2>(layout.anchors, "anchors");
  check_shape(layout.anchors, {B, N}, "anchors");
  check_shape(layout.keep, {B, N}, "keep");
  check_shape(layout.context_begin, {B, N}, "context_begin");
  check_shape(inputs.query, {B, N * layout.block_size, H, E}, "query");
  check_shape(inputs.query, {B, Q, H / G * G, E}, "query");
}

}  // namespace

Tensor make_block_mask(
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

Tensor attend_densely(
    const BlockAttentionInputs& inputs,
    const BlockLayout& layout,
    const BlockVisibility& visibility) {
  const auto [B, Q, H, E] = dims<4>(inputs.query, "query");
  const auto [Bc, S, G, Ec] = dims<4>(inputs.context_key, "context_key");
  const int64_t L = S + Q;
  const int64_t repeat = H / G;
  const auto statistics =
      inputs.query.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  const auto key = torch::cat({inputs.context_key, inputs.block_key}, 1);
  const auto value = torch::cat({inputs.context_value, inputs.block_value}, 1);
  // Heads that share a key head stand side by side as rows, so keys are never expanded.
  const auto rows = inputs.query.view({B, Q, G, repeat, E})
                        .permute({0, 2, 3, 1, 4})
                        .reshape({B * G, repeat * Q, E});
  const auto keys = key.permute({0, 2, 3, 1}).reshape({B * G, E, L});
  const auto values = value.permute({0, 2, 1, 3}).reshape({B * G, L, E});
  const auto hidden = make_block_mask(layout, visibility, S)
                          .logical_not()
                          .view({B, 1, 1, Q, L})
                          .to(inputs.query.device());

  // A finite lowest value and a zero afterwards: with -inf a row that sees nothing is NaN, and
  // its gradient poisons real rows through 0 * NaN.
  const auto scores = (torch::bmm(rows, keys).to(statistics) / std::sqrt(static_cast<double>(E)))
                          .view({B, G, repeat, Q, L})
                          .masked_fill(hidden, std::numeric_limits<float>::lowest());
  const auto weights =
      torch::softmax(scores, -1).masked_fill(hidden, 0).to(inputs.query.scalar_type());
  return torch::bmm(weights.view({B * G, repeat * Q, L}), values)
      .view({B, G, repeat, Q, E})
      .permute({0, 3, 1, 2, 4})
      .reshape({B, Q, H, E});
}

void save_call(
    torch::autograd::AutogradContext* context,
    const BlockAttentionInputs& inputs,
    const BlockLayout& layout,
    const BlockVisibility& visibility,
    const std::vector<Tensor>& more) {
  std::vector<Tensor> tensors = {inputs.query,     inputs.context_key,  inputs.context_value,
                                 inputs.block_key, inputs.block_value,  layout.anchors,
                                 layout.keep,      layout.context_begin};
  tensors.insert(tensors.end(), more.begin(), more.end());
  context->save_for_backward(std::move(tensors));
  context->saved_data["block_size"] = layout.block_size;
  context->saved_data["window"] = visibility.window;
  context->saved_data["is_causal_block"] = visibility.is_causal_block;
}

SavedCall::SavedCall(torch::autograd::AutogradContext* context) {
  const auto saved = context->get_saved_variables();
  inputs = {saved[0], saved[1], saved[2], saved[3], saved[4]};
  layout = {saved[5], saved[6], saved[7], context->saved_data["block_size"].toInt()};
  visibility = {
      context->saved_data["window"].toInt(), context->saved_data["is_causal_block"].toBool()};
  more.assign(saved.begin() + 8, saved.end());
}

AttentionMethod find_method_that_runs(
    AttentionMethod method,
    torch::Device device,
    torch::ScalarType dtype,
    const BlockHeads& heads) {
  const bool has_none =
      method == AttentionMethod::kBlock && !device.is_cpu() && !needs_plans(device, dtype, heads);
  return has_none ? AttentionMethod::kGather : method;
}

Tensor block_attention(
    const BlockAttentionInputs& inputs,
    const BlockLayout& layout,
    const BlockVisibility& visibility,
    AttentionMethod method) {
  check_inputs(inputs, layout);
  const BlockHeads heads{
      inputs.context_key.size(1), inputs.query.size(2), inputs.context_key.size(2),
      inputs.query.size(3)};
  switch (find_method_that_runs(method, inputs.query.device(), inputs.query.scalar_type(), heads)) {
    case AttentionMethod::kBlock:
      if (has_block_kernel(inputs)) return attend_by_kernel(inputs, layout, visibility);
      return attend_in_tiles(inputs, layout, visibility);
    case AttentionMethod::kGather:
      return attend_gathered(inputs, layout, visibility);
    case AttentionMethod::kDense:
      return attend_densely(inputs, layout, visibility);
  }
  return {};
}

}  // namespace draftsmith::ops
