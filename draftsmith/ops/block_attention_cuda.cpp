// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/autograd/custom_function.h>

#include "draftsmith/ops/block_methods.h"
#include "draftsmith/ops/block_plan.h"
#include "draftsmith/ops/cuda/on_device.h"

namespace draftsmith::ops {
namespace {

using torch::Tensor;

/// What the kernels take, but for the results.
cuda::BlockAttentionParams make_params(
    const BlockAttentionInputs& in,
    const BlockVisibility& visibility,
    int64_t block_size,
    const cuda::BlockPlanView& plan) {
  return {
      .query = in.query.const_data_ptr(),
      .context_key = in.context_key.const_data_ptr(),
      .context_value = in.context_value.const_data_ptr(),
      .block_key = in.block_key.const_data_ptr(),
      .block_value = in.block_value.const_data_ptr(),
      .B = in.query.size(0),
      .S = in.context_key.size(1),
      .N = in.query.size(1) / block_size,
      .K = block_size,
      .H = in.query.size(2),
      .G = in.context_key.size(2),
      .E = in.query.size(3),
      .window = visibility.window,
      .is_causal_block = visibility.is_causal_block,
      .plan = plan,
      .out = nullptr,
      .log_sum = nullptr};
}

struct PlannedAttention : torch::autograd::Function<PlannedAttention> {
  static Tensor forward(
      torch::autograd::AutogradContext* context,
      const Tensor& query,
      const Tensor& context_key,
      const Tensor& context_value,
      const Tensor& block_key,
      const Tensor& block_value,
      const BlockLayout& layout,
      const BlockVisibility& visibility) {
    const BlockAttentionInputs in{
        query.contiguous(), context_key.contiguous(), context_value.contiguous(),
        block_key.contiguous(), block_value.contiguous()};
    const auto plan = make_block_plan(
        layout, visibility, in.context_key.size(1), query.size(2) / in.context_key.size(2),
        query.size(3));
    const cuda::OnDevice place(query);
    const auto joined = plan.join().to(query.device(), /*non_blocking=*/true);
    auto out = plan.keeps_all_blocks ? torch::empty_like(in.query) : torch::zeros_like(in.query);
    const auto log_sum =
        torch::empty(in.query.sizes().slice(0, 3), in.query.options().dtype(torch::kFloat));
    auto params =
        make_params(in, visibility, layout.block_size, view_block_plan(joined, plan.sizes()));
    params.out = out.data_ptr();
    params.log_sum = log_sum.data_ptr<float>();
    cuda::compute_block_attention(params, place.stream());
    context->save_for_backward(
        {in.query, in.context_key, in.context_value, in.block_key, in.block_value, out, log_sum,
         joined});
    context->saved_data["sizes"] = plan.sizes();
    context->saved_data["keeps_all_blocks"] = plan.keeps_all_blocks;
    context->saved_data["block_size"] = layout.block_size;
    context->saved_data["window"] = visibility.window;
    context->saved_data["is_causal_block"] = visibility.is_causal_block;
    return out;
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list upstream) {
    const auto saved = context->get_saved_variables();
    const BlockAttentionInputs in{saved[0], saved[1], saved[2], saved[3], saved[4]};
    const auto sizes = context->saved_data["sizes"].toIntVector();
    const cuda::OnDevice place(in.query);
    auto params = make_params(
        in,
        {context->saved_data["window"].toInt(), context->saved_data["is_causal_block"].toBool()},
        context->saved_data["block_size"].toInt(), view_block_plan(saved[7], sizes));
    params.out = saved[5].data_ptr();
    params.log_sum = saved[6].data_ptr<float>();
    const auto out_gradient = upstream[0].contiguous();
    const auto delta = torch::empty_like(saved[6]);
    auto query_gradient = context->saved_data["keeps_all_blocks"].toBool()
                              ? torch::empty_like(in.query)
                              : torch::zeros_like(in.query);
    torch::autograd::variable_list gradients = {query_gradient};
    for (const Tensor& key : {in.context_key, in.context_value, in.block_key, in.block_value})
      gradients.push_back(torch::empty_like(key));
    cuda::compute_block_attention_gradient(
        {.forward = params,
         .out_gradient = out_gradient.const_data_ptr(),
         .delta = delta.data_ptr<float>(),
         .query_gradient = gradients[0].data_ptr(),
         .context_key_gradient = gradients[1].data_ptr(),
         .context_value_gradient = gradients[2].data_ptr(),
         .block_key_gradient = gradients[3].data_ptr(),
         .block_value_gradient = gradients[4].data_ptr()},
        place.stream());
    gradients.resize(7);
    return gradients;
  }
};

}  // namespace

bool has_block_kernel(const BlockAttentionInputs& in) {
  return in.query.is_cuda() && in.query.scalar_type() == torch::kBFloat16 &&
         cuda::has_block_attention(in.query.size(3));
}

Tensor attend_by_kernel(
    const BlockAttentionInputs& in,
    const BlockLayout& layout,
    const BlockVisibility& visibility) {
  const auto host = [](const Tensor& x) { return x.cpu().contiguous(); };
  const BlockLayout dense{
      host(layout.anchors), host(layout.keep.to(torch::kBool)), host(layout.context_begin),
      layout.block_size};
  return PlannedAttention::apply(
      in.query, in.context_key, in.context_value, in.block_key, in.block_value, dense, visibility);
}

}  // namespace draftsmith::ops
