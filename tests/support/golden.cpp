// SPDX-License-Identifier: Apache-2.0
#include "tests/support/golden.h"

namespace draftsmith::testing {

std::filesystem::path fixture(const std::string& path) {
  return std::filesystem::path(DS_FIXTURES) / path;
}

formats::SafetensorsReader golden(const std::string& path) {
  return formats::SafetensorsReader::open_file(fixture(path));
}

double max_difference(const torch::Tensor& left, const torch::Tensor& right) {
  return (left.to(torch::kDouble) - right.to(torch::kDouble)).abs().max().item<double>();
}

double relative_difference(const torch::Tensor& left, const torch::Tensor& right) {
  const auto wanted = right.to(torch::kDouble);
  const double norm = wanted.norm().item<double>();
  return (left.to(torch::kDouble) - wanted).norm().item<double>() / (norm > 0 ? norm : 1);
}

}  // namespace draftsmith::testing
