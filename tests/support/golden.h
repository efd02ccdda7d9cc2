// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include <torch/types.h>

#include "draftsmith/formats/safetensors.h"

namespace draftsmith::testing {

/// A path below tests/fixtures.
std::filesystem::path fixture(const std::string& path);

/// The tensors of a safetensors file below tests/fixtures.
formats::SafetensorsReader golden(const std::string& path);

/// Largest absolute difference, in float64.
double max_difference(const torch::Tensor& left, const torch::Tensor& right);

/// |left - right| / |right| in the L2 norm, in float64.
double relative_difference(const torch::Tensor& left, const torch::Tensor& right);

}  // namespace draftsmith::testing
