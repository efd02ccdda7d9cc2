// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <torch/types.h>

namespace draftsmith::ops {

/// Which implementation of each operation a frozen model's forward gets on this machine: one line
/// per group of operations, for the log. `head_dims` are the delta rule's [Ek, Ev], empty for a
/// model without it.
std::vector<std::string> describe_operations(
    torch::Device device,
    torch::ScalarType dtype,
    const std::vector<int64_t>& head_dims);

}  // namespace draftsmith::ops
