// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string_view>

#include <torch/types.h>

namespace draftsmith::ops {

/// Errors: ShapeError unless `tensor` is defined and has `rank` dimensions.
void check_rank(const torch::Tensor& tensor, int64_t rank, std::string_view name);

/// Errors: ShapeError unless `tensor` has exactly this shape.
void check_shape(const torch::Tensor& tensor, at::IntArrayRef shape, std::string_view name);

/// Errors: ShapeError unless both have the same dtype and device.
void check_same_kind(
    const torch::Tensor& left,
    const torch::Tensor& right,
    std::string_view left_name,
    std::string_view right_name);

/// The sizes of a tensor of rank N: `const auto [B, S, D] = dims<3>(hidden, "hidden");`
template <size_t N>
std::array<int64_t, N> dims(const torch::Tensor& tensor, std::string_view name) {
  check_rank(tensor, static_cast<int64_t>(N), name);
  std::array<int64_t, N> sizes;
  for (size_t i = 0; i < N; ++i)
    sizes[i] = tensor.size(static_cast<int64_t>(i));
  return sizes;
}

}  // namespace draftsmith::ops
