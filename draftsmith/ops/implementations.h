// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <torch/types.h>

namespace draftsmith::ops {

/// The heads of a model, which decide who computes what.
struct ModelHeads {
  int64_t heads;                     // H of attention
  int64_t key_heads;                 // G
  int64_t head_dim;                  // E
  std::vector<int64_t> linear_dims;  // the delta rule's [Ek, Ev], empty for a model without it
};

/// Which implementation of each operation a frozen model's forward gets on this machine: one line
/// per group of operations, for the log.
std::vector<std::string>
describe_operations(torch::Device device, torch::ScalarType dtype, const ModelHeads& heads);

}  // namespace draftsmith::ops
