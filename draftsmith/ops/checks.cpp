// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "draftsmith/base/error.h"

namespace draftsmith::ops {

void check_rank(const torch::Tensor& tensor, int64_t rank, std::string_view name) {
  if (!tensor.defined()) {
    throw ShapeError(
        {.what = std::string(name),
         .expected = fmt::format("a tensor of {} dimensions", rank),
         .got = "none"});
  }
  if (tensor.dim() == rank) return;
  throw ShapeError(
      {.what = std::string(name),
       .expected = fmt::format("{} dimensions", rank),
       .got = fmt::format("shape {}", tensor.sizes().vec())});
}

void check_shape(const torch::Tensor& tensor, at::IntArrayRef shape, std::string_view name) {
  if (tensor.defined() && tensor.sizes() == shape) return;
  throw ShapeError(
      {.what = std::string(name),
       .expected = fmt::format("shape {}", shape.vec()),
       .got = tensor.defined() ? fmt::format("{}", tensor.sizes().vec()) : "none"});
}

void check_same_kind(
    const torch::Tensor& left,
    const torch::Tensor& right,
    std::string_view left_name,
    std::string_view right_name) {
  if (left.scalar_type() == right.scalar_type() && left.device() == right.device()) return;
  throw ShapeError(
      {.what = std::string(left_name),
       .expected = fmt::format(
           "{} on {}, as {}", c10::toString(right.scalar_type()), right.device().str(), right_name),
       .got = fmt::format("{} on {}", c10::toString(left.scalar_type()), left.device().str())});
}

}  // namespace draftsmith::ops
