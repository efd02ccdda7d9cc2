// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/linear.h"

#include "draftsmith/ops/checks.h"
#include "draftsmith/ops/kernels.h"
#include "draftsmith/ops/storage.h"

namespace draftsmith::ops {

bool has_half_products() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return true;
#endif
}

int64_t most_few_rows(torch::ScalarType dtype) {
  if (dtype == torch::kFloat) return 65;
  return dtype == torch::kBFloat16 && !has_half_products() ? 65 : 16;
}

torch::Tensor
linear(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias) {
  const int64_t in = x.size(-1);
  const int64_t rows = in == 0 ? 0 : x.numel() / in;
  const bool is_few = rows >= 1 && rows <= most_few_rows(x.scalar_type()) && x.device().is_cpu() &&
                      weight.is_contiguous() && !needs_gradient({x, weight});
  if (!is_few || bias.defined()) return at::linear(x, weight, bias);
  check_shape(weight, {weight.size(0), in}, "linear weight");
  check_same_kind(weight, x, "linear weight", "x");
  const auto dense = x.contiguous();
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
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
