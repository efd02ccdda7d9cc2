// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/rms_norm.h"

#include <torch/csrc/autograd/custom_function.h>

#include "draftsmith/base/error.h"
#include "draftsmith/ops/checks.h"
#include "draftsmith/ops/cuda/on_device.h"
#include "draftsmith/ops/kernels.h"
#include "draftsmith/ops/storage.h"

namespace draftsmith::ops {
namespace {

using torch::Tensor;

/// How a norm differs from the plain one.
struct Variant {
  double* scale = nullptr;
  bool is_zero_centred = false;
  const void* gate = nullptr;
};

Tensor run_forward(const Tensor& x, const Tensor& weight, double eps, const Variant& variant) {
  auto out = torch::empty_like(x);
  const int64_t width = x.size(-1);
  const RmsNormParams params{
      .storage = storage_of(x),
      .x = x.const_data_ptr(),
      .weight = weight.const_data_ptr(),
      .rows = width == 0 ? 0 : x.numel() / width,
      .width = width,
      .eps = eps,
      .out = out.data_ptr(),
      .scale = variant.scale,
      .is_zero_centred = variant.is_zero_centred,
      .gate = variant.gate};
  cuda::run_where(x, params, compute_rms_norm, cuda::compute_rms_norm);
  return out;
}

void check_weight(const Tensor& x, const Tensor& weight) {
  check_shape(weight, {x.size(-1)}, "rms_norm weight");
  check_same_kind(weight, x, "rms_norm weight", "x");
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static Tensor forward(
      torch::autograd::AutogradContext* context,
      const Tensor& x,
      const Tensor& weight,
      double eps) {
    const auto scale = torch::empty({x.numel() / x.size(-1)}, x.options().dtype(torch::kDouble));
    context->save_for_backward({x, weight, scale});
    return run_forward(x, weight, eps, {.scale = scale.data_ptr<double>()});
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list upstream) {
    const auto saved = context->get_saved_variables();
    const Tensor& x = saved[0];
    const Tensor& weight = saved[1];
    const auto out_gradient = upstream[0].contiguous();
    auto x_gradient = torch::empty_like(x);
    auto weight_gradient = torch::empty({x.size(-1)}, x.options().dtype(torch::kDouble));
    const RmsNormGradientParams params{
        .storage = storage_of(x),
        .x = x.const_data_ptr(),
        .weight = weight.const_data_ptr(),
        .scale = saved[2].const_data_ptr<double>(),
        .out_gradient = out_gradient.const_data_ptr(),
        .rows = x.numel() / x.size(-1),
        .width = x.size(-1),
        .x_gradient = x_gradient.data_ptr(),
        .weight_gradient = weight_gradient.data_ptr<double>()};
    if (x.is_cpu()) {
      compute_rms_norm_gradient(params);
    } else {
      const cuda::OnDevice place(x);
      const auto partial = torch::empty(
          {cuda::rms_norm_partial_size(params.rows, params.width)}, weight_gradient.options());
      cuda::compute_rms_norm_gradient(params, partial.data_ptr<double>(), place.stream());
    }
    return {x_gradient, weight_gradient.to(weight.scalar_type()), Tensor()};
  }
};

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  check_weight(x, weight);
  const auto dense = x.contiguous();
  if (needs_gradient({x, weight})) return RmsNorm::apply(dense, weight, eps);
  return run_forward(dense, weight, eps, {});
}

Tensor zero_centred_rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  check_weight(x, weight);
  DS_CHECK(!needs_gradient({x, weight}));
  return run_forward(x.contiguous(), weight, eps, {.is_zero_centred = true});
}

Tensor gated_rms_norm(const Tensor& x, const Tensor& weight, const Tensor& gate, double eps) {
  check_weight(x, weight);
  check_shape(gate, x.sizes(), "rms_norm gate");
  check_same_kind(gate, x, "rms_norm gate", "x");
  DS_CHECK(!needs_gradient({x, weight, gate}));
  const auto dense_gate = gate.contiguous();
  return run_forward(x.contiguous(), weight, eps, {.gate = dense_gate.const_data_ptr()});
}

}  // namespace draftsmith::ops
