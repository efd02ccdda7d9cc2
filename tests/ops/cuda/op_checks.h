// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <torch/types.h>

namespace draftsmith::testing {

/// An operation on tensors of a device, against its definition or the CPU.
struct OpCheck {
  const char* name;  // a sentence
  void (*run)(torch::Device device);
};

std::vector<OpCheck> mixer_op_checks();  // attention of blocks and the delta rule

/// All of them.
std::vector<OpCheck> op_checks();

}  // namespace draftsmith::testing
