// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <vector>

#include <torch/types.h>

#include "draftsmith/base/random.h"

namespace draftsmith::testing {

/// Reproducible values of a normal distribution, float64.
inline torch::Tensor random_normal(std::vector<int64_t> shape, uint64_t seed) {
  auto tensor = torch::empty(shape, torch::kDouble);
  double* data = tensor.data_ptr<double>();
  const auto uniform = [&](uint64_t i, uint64_t part) {
    return (static_cast<double>(hash_key({seed, i, part}) >> 11) + 0.5) * 0x1p-53;
  };
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    const auto key = static_cast<uint64_t>(i);
    data[i] = std::sqrt(-2 * std::log(uniform(key, 0))) * std::cos(2 * M_PI * uniform(key, 1));
  }
  return tensor;
}

}  // namespace draftsmith::testing
