// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/split_float.h"

namespace draftsmith::ops {

void split_float(const torch::Tensor& value, const torch::Tensor& high, const torch::Tensor& low) {
  const auto bits = value.view(torch::kInt);
  const auto high_bits = bits.add(1 << 15).bitwise_right_shift_(16);
  high.view(torch::kShort).copy_(high_bits);
  if (low.defined()) low.copy_(bits.sub(high_bits.bitwise_left_shift_(16)));
}

torch::Tensor join_float(const torch::Tensor& high, const torch::Tensor& low) {
  return high.view(torch::kShort)
      .to(torch::kInt)
      .bitwise_left_shift_(16)
      .add_(low)
      .view(torch::kFloat);
}

}  // namespace draftsmith::ops
