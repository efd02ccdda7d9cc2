// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/rotary.h"

#include <torch/csrc/autograd/custom_function.h>

#include "draftsmith/ops/checks.h"
#include "draftsmith/ops/cuda/on_device.h"
#include "draftsmith/ops/kernels.h"
#include "draftsmith/ops/storage.h"

namespace draftsmith::ops {
namespace {

using torch::Tensor;

Tensor rotate(const Tensor& x, const Tensor& cos, const Tensor& sin, bool is_inverse) {
  auto out = torch::empty_like(x);
  const RotaryParams params{
      .storage = storage_of(x),
      .x = x.const_data_ptr(),
      .cos = cos.const_data_ptr(),
      .sin = sin.const_data_ptr(),
      .B = x.size(0),
      .S = x.size(1),
      .H = x.size(2),
      .E = x.size(3),
      .rotated = 2 * cos.size(-1),
      .has_batch_angles = cos.size(0) > 1,
      .is_inverse = is_inverse,
      .out = out.data_ptr()};
  cuda::run_where(x, params, compute_rotary, cuda::compute_rotary);
  return out;
}

struct Rotary : torch::autograd::Function<Rotary> {
  static Tensor forward(
      torch::autograd::AutogradContext* context,
      const Tensor& x,
      const Tensor& cos,
      const Tensor& sin) {
    context->save_for_backward({cos, sin});
    return rotate(x, cos, sin, /*is_inverse=*/false);
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list upstream) {
    const auto saved = context->get_saved_variables();
    return {
        rotate(upstream[0].contiguous(), saved[0], saved[1], /*is_inverse=*/true), Tensor(),
        Tensor()};
  }
};

}  // namespace

RotaryAngles make_rotary_angles(
    const Tensor& positions,
    const Tensor& inverse_frequencies,
    double attention_factor,
    torch::ScalarType dtype) {
  const auto angles =
      positions.to(inverse_frequencies.scalar_type()).unsqueeze(-1) * inverse_frequencies;
  return {(angles.cos() * attention_factor).to(dtype), (angles.sin() * attention_factor).to(dtype)};
}

Tensor apply_rotary(const Tensor& x, const RotaryAngles& angles) {
  const auto [B, S, H, E] = dims<4>(x, "rotary input");
  const int64_t rows = angles.cos.size(0) == 1 ? 1 : B;
  const int64_t half = angles.cos.size(-1);
  if (half > E / 2) check_shape(angles.cos, {rows, S, E / 2}, "rotary cos");
  check_shape(angles.cos, {rows, S, half}, "rotary cos");
  check_shape(angles.sin, {rows, S, half}, "rotary sin");
  check_same_kind(angles.cos, x, "rotary cos", "x");
  const auto cos = angles.cos.contiguous();
  const auto sin = angles.sin.contiguous();
  if (needs_gradient({x})) return Rotary::apply(x.contiguous(), cos, sin);
  return rotate(x.contiguous(), cos, sin, /*is_inverse=*/false);
}

}  // namespace draftsmith::ops
