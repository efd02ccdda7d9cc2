// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/linear.h"

#include <optional>
#include <utility>

#include <torch/csrc/autograd/custom_function.h>

#include "draftsmith/ops/checks.h"
#include "draftsmith/ops/kernels.h"
#include "draftsmith/ops/product.h"
#include "draftsmith/ops/storage.h"

namespace draftsmith::ops {
namespace {

thread_local bool has_same_bits = false;

/// libtorch's linear, its three products in parts.
struct ProductsInParts : torch::autograd::Function<ProductsInParts> {
  static torch::Tensor forward(
      torch::autograd::AutogradContext* context,
      const torch::Tensor& x,                      // [rows, in]
      const torch::Tensor& weight,                 // [out, in]
      const std::optional<torch::Tensor>& bias) {  // [out]
    context->save_for_backward({x, weight});
    context->saved_data["has_bias"] = bias.has_value();
    return product(x, weight.t(), bias.value_or(torch::Tensor()));
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list upstream) {
    const auto saved = context->get_saved_variables();
    const auto& gradient = upstream[0];
    torch::autograd::variable_list result(3);
    if (context->needs_input_grad(0)) result[0] = product(gradient, saved[1]);
    if (context->needs_input_grad(1)) result[1] = product(gradient.t(), saved[0]);
    const bool has_bias = context->saved_data["has_bias"].toBool();
    if (has_bias && context->needs_input_grad(2)) result[2] = gradient.sum(0);
    return result;
  }
};

}  // namespace

bool has_half_products() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return true;
#endif
}

int64_t most_few_rows(torch::ScalarType dtype) {
  if (dtype == torch::kFloat) return 40;
  return dtype == torch::kBFloat16 && !has_half_products() ? 40 : 16;
}

int64_t most_single_tokens(torch::ScalarType dtype) {
  return dtype == torch::kFloat ? 64 : most_few_rows(dtype);
}

SameBitsForAnyRows::SameBitsForAnyRows() : outer_(std::exchange(has_same_bits, true)) {}

SameBitsForAnyRows::~SameBitsForAnyRows() { has_same_bits = outer_; }

torch::Tensor
linear(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias) {
  const int64_t in = x.size(-1);
  const int64_t rows = in == 0 ? 0 : x.numel() / in;
  const bool are_single_tokens = x.dim() > 2 && x.size(-2) == 1;
  const int64_t most =
      are_single_tokens ? most_single_tokens(x.scalar_type()) : most_few_rows(x.scalar_type());
  const bool is_any = has_same_bits && x.scalar_type() == torch::kFloat;
  const bool is_few = rows >= 1 && (is_any || rows <= most) && x.device().is_cpu() &&
                      weight.is_contiguous() && !needs_gradient({x, weight});
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  if (!is_few || bias.defined()) {
    const bool sums_elsewhere = x.is_cpu() && x.scalar_type() == torch::kBFloat16 && rows > 0;
    if (!sums_elsewhere) return at::linear(x, weight, bias);
    const auto added = bias.defined() ? std::make_optional(bias) : std::nullopt;
    return ProductsInParts::apply(x.reshape({rows, in}), weight, added).view(sizes);
  }
  check_shape(weight, {weight.size(0), in}, "linear weight");
  check_same_kind(weight, x, "linear weight", "x");
  const auto dense = x.contiguous();
  auto out = torch::empty(sizes, x.options());
  compute_few_row_linear(
      {.storage = storage_of(x),
       .x = dense.const_data_ptr(),
       .weight = weight.const_data_ptr(),
       .rows = rows,
       .in = in,
       .out_features = weight.size(0),
       .out = out.data_ptr()});
  return out;
}

}  // namespace draftsmith::ops
