// SPDX-License-Identifier: Apache-2.0
// What the parts of the step's model share.
#pragma once

#include <cstdint>
#include <vector>

#include "draftsmith/memory/step_model.h"
#include "draftsmith/model/weights.h"

namespace draftsmith::memory {

inline constexpr int64_t kFloat = 4;
inline constexpr int64_t kDouble = 8;
inline constexpr int64_t kLong = 8;
inline constexpr const char* kFeatures = "target features and teacher states";
inline constexpr const char* kTarget = "target activations";

int64_t sum_numel(const std::vector<model::WeightSpec>& specs);

}  // namespace draftsmith::memory
