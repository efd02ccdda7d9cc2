// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tests/support/random_tensor.h"

namespace draftsmith::testing {

/// Central differences of a scalar function with respect to every element of `x` (float64), which
/// is changed in place and restored. The truncation error is of the order step^2.
inline torch::Tensor
numeric_gradient(const std::function<double()>& function, torch::Tensor x, double step = 1e-6) {
  const at::NoGradGuard no_grad;
  auto gradient = torch::zeros(x.sizes(), torch::kDouble);
  double* values = x.data_ptr<double>();
  double* slopes = gradient.data_ptr<double>();
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double value = values[i];
    values[i] = value + step;
    const double high = function();
    values[i] = value - step;
    const double low = function();
    values[i] = value;
    slopes[i] = (high - low) / (2 * step);
  }
  return gradient;
}

/// Runs `action`, which must throw an `ErrorType` whose message holds every one of `parts`.
template <class ErrorType>
void expect_error(const std::function<void()>& action, const std::vector<std::string>& parts = {}) {
  try {
    action();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const ErrorType& error) {
    const std::string message = error.what();
    for (const std::string& part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' in: " << message;
  }
}

}  // namespace draftsmith::testing
