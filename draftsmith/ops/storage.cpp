// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/storage.h"

#include "draftsmith/base/error.h"

namespace draftsmith::ops {

Storage storage_of(const torch::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case torch::kBFloat16:
      return Storage::kBF16;
    case torch::kFloat:
      return Storage::kF32;
    case torch::kDouble:
      return Storage::kF64;
    default:
      throw ShapeError(
          {.what = "dtype",
           .expected = "bfloat16, float32 or float64",
           .got = c10::toString(tensor.scalar_type())});
  }
}

bool needs_gradient(std::initializer_list<torch::Tensor> tensors) {
  if (!at::GradMode::is_enabled()) return false;
  for (const auto& tensor : tensors)
    if (tensor.requires_grad()) return true;
  return false;
}

}  // namespace draftsmith::ops
