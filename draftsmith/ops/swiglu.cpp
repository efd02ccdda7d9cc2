// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/swiglu.h"

#include <torch/csrc/autograd/custom_function.h>

#include "draftsmith/ops/checks.h"
#include "draftsmith/ops/cuda/on_device.h"
#include "draftsmith/ops/kernels.h"
#include "draftsmith/ops/storage.h"

namespace draftsmith::ops {
namespace {

using torch::Tensor;

SwigluParams make_params(const Tensor& gate, const Tensor& up) {
  return {
      .storage = storage_of(gate),
      .gate = gate.const_data_ptr(),
      .up = up.const_data_ptr(),
      .count = gate.numel(),
      .out = nullptr};
}

Tensor run_forward(const Tensor& gate, const Tensor& up) {
  auto out = torch::empty_like(gate);
  auto params = make_params(gate, up);
  params.out = out.data_ptr();
  cuda::run_where(gate, params, compute_swiglu, cuda::compute_swiglu);
  return out;
}

struct Swiglu : torch::autograd::Function<Swiglu> {
  static Tensor
  forward(torch::autograd::AutogradContext* context, const Tensor& gate, const Tensor& up) {
    context->save_for_backward({gate, up});
    return run_forward(gate, up);
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list upstream) {
    const auto saved = context->get_saved_variables();
    const auto out_gradient = upstream[0].contiguous();
    auto gate_gradient = torch::empty_like(saved[0]);
    auto up_gradient = torch::empty_like(saved[1]);
    auto params = make_params(saved[0], saved[1]);
    params.out_gradient = out_gradient.const_data_ptr();
    params.gate_gradient = gate_gradient.data_ptr();
    params.up_gradient = up_gradient.data_ptr();
    cuda::run_where(saved[0], params, compute_swiglu, cuda::compute_swiglu);
    return {gate_gradient, up_gradient};
  }
};

}  // namespace

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  check_shape(up, gate.sizes(), "swiglu up");
  check_same_kind(up, gate, "swiglu up", "gate");
  if (needs_gradient({gate, up})) return Swiglu::apply(gate.contiguous(), up.contiguous());
  return run_forward(gate.contiguous(), up.contiguous());
}

}  // namespace draftsmith::ops
