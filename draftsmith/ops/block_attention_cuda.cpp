// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/autograd/custom_function.h>

#include "draftsmith/ops/block_methods.h"
#include "draftsmith/ops/block_plan.h"
#include "draftsmith/ops/cuda/on_device.h"

namespace draftsmith::ops {
namespace {

using torch::Tensor;

struct PlannedAttention : torch::autograd::Function<PlannedAttention> {
  static Tensor forward(
      torch::autograd::AutogradContext* context,
      const Tensor& query,
      const Tensor& context_key,
      const Tensor& context_value,
      const Tensor& block_key,
      const Tensor& block_value,
      const PlacedPlan& plan,
      int64_t block_size) {
    const BlockAttentionInputs in{
        query.contiguous(), context_key.contiguous(), context_value.contiguous(),
        block_key.contiguous(), block_value.contiguous()};
    const cuda::OnDevice place(query);
    auto out = plan.keeps_all_blocks ? torch::empty_like(in.query) : torch::zeros_like(in.query);
    const auto log_sum =
        torch::empty(in.query.sizes().slice(0, 3), in.query.options().dtype(torch::kFloat));
    const auto& visibility = plan.visibility;
    auto params =
        make_kernel_params(in, visibility, block_size, view_block_plan(plan.lists, plan.sizes));
    params.out = out.data_ptr();
    params.log_sum = log_sum.data_ptr<float>();
    cuda::compute_block_attention(params, place.stream());
    context->save_for_backward(
        {in.query, in.context_key, in.context_value, in.block_key, in.block_value, out, log_sum,
         plan.lists});
    context->saved_data["sizes"] = plan.sizes;
    context->saved_data["keeps_all_blocks"] = plan.keeps_all_blocks;
    context->saved_data["block_size"] = block_size;
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
    auto params = make_kernel_params(
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

BlockHeads heads_of(const BlockAttentionInputs& in) {
  return {in.context_key.size(1), in.query.size(2), in.context_key.size(2), in.query.size(3)};
}

}  // namespace

bool needs_plans(torch::Device device, torch::ScalarType dtype, const BlockHeads& heads) {
  return device.is_cuda() && dtype == torch::kBFloat16 && cuda::has_block_attention(heads.width);
}

bool has_block_kernel(const BlockAttentionInputs& in) {
  return needs_plans(in.query.device(), in.query.scalar_type(), heads_of(in));
}

std::vector<PlacedPlan> place_plans(
    const BlockLayout& layout,
    const std::vector<BlockVisibility>& visibilities,
    const BlockHeads& heads,
    torch::Device device,
    bool has_fixed_sizes) {
  const auto host = [](const Tensor& x) { return x.cpu().contiguous(); };
  const BlockLayout dense{
      host(layout.anchors), host(layout.keep.to(torch::kBool)), host(layout.context_begin),
      layout.block_size};
  const int64_t repeat = heads.query_heads / heads.key_heads;
  std::vector<PlacedPlan> plans;
  for (const auto& visibility : visibilities) {
    auto plan = make_block_plan(dense, visibility, heads.context_length, repeat, heads.width);
    if (has_fixed_sizes)
      fill_block_plan(plan, dense.anchors.numel(), dense.block_size * repeat, heads.width);
    plans.push_back(
        {visibility, plan.join().to(device, /*non_blocking=*/true), plan.sizes(),
         plan.keeps_all_blocks});
  }
  return plans;
}

Tensor attend_by_kernel(
    const BlockAttentionInputs& in,
    const BlockLayout& layout,
    const BlockVisibility& visibility) {
  const auto attend = [&](const PlacedPlan& plan) {
    return PlannedAttention::apply(
        in.query, in.context_key, in.context_value, in.block_key, in.block_value, plan,
        layout.block_size);
  };
  for (const PlacedPlan& plan : layout.plans)
    if (plan.visibility == visibility) return attend(plan);
  return attend(place_plans(layout, {visibility}, heads_of(in), in.query.device(), false).front());
}

}  // namespace draftsmith::ops
