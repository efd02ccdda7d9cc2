// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "draftsmith/formats/safetensors.h"

namespace draftsmith::train {

struct AdamWSettings {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0;
  double clip_norm = 1.0;  // 0 = none
};

/// AdamW on float32 masters. Weights in bfloat16 are rounded from their masters after every step:
/// on their own they would lose every update smaller than half their spacing. Weights in float32
/// are their own masters. Gradients of micro-steps are summed in float32.
class AdamW {
 public:
  using Parameters = std::vector<std::pair<std::string, torch::Tensor>>;

  AdamW(const Parameters& parameters, const AdamWSettings& settings);

  /// Adds the gradients of one micro-step, in the order of the parameters; an undefined one is 0.
  void accumulate(const std::vector<torch::Tensor>& gradients);

  /// Forgets what was accumulated.
  void clear_gradients();

  /// The L2 norm of the accumulated gradients times `scale`.
  double gradient_norm(double scale) const;

  /// Updates with the accumulated gradients times `scale`, clipped by `norm` (from
  /// `gradient_norm`) if that is above clip_norm, and forgets them.
  void step(double lr, double scale, double norm);

  int64_t num_steps() const { return num_steps_; }

  /// Masters (only those of bfloat16 weights) and moments under the parameters' names.
  formats::NamedTensors state() const;

  /// Errors: DataError if a tensor is missing or of another shape.
  void load_state(const formats::SafetensorsReader& reader, int64_t num_steps);

  /// Whether the weights have masters of their own.
  bool has_masters() const { return has_masters_; }

 private:
  AdamWSettings settings_;
  std::vector<std::string> names_;
  std::vector<torch::Tensor> weights_;    // shared with the drafter
  std::vector<torch::Tensor> masters_;    // fp32; the weights themselves if those are fp32
  std::vector<torch::Tensor> gradients_;  // fp32 sums
  std::vector<torch::Tensor> first_;      // fp32
  std::vector<torch::Tensor> second_;     // fp32
  bool has_masters_;
  int64_t num_steps_ = 0;
};

}  // namespace draftsmith::train
