// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include "draftsmith/formats/hf_config.h"
#include "draftsmith/ops/rotary.h"

namespace draftsmith::model {

/// The rotary frequencies of a model. They stay float32 whatever dtype the model runs in: in
/// bfloat16 positions de-phase with length.
class Rope {
 public:
  Rope() = default;
  /// Errors: none; the settings were checked when they were read.
  Rope(const formats::RopeSettings& settings, int64_t head_dim);

  const torch::Tensor& inverse_frequencies() const { return inverse_frequencies_; }  // [E/2] fp32
  double attention_factor() const { return attention_factor_; }

  ops::RotaryAngles angles(const torch::Tensor& positions, torch::ScalarType dtype) const {
    return ops::make_rotary_angles(positions, inverse_frequencies_, attention_factor_, dtype);
  }

 private:
  torch::Tensor inverse_frequencies_;
  double attention_factor_ = 1;
};

}  // namespace draftsmith::model
