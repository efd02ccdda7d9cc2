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
  /// Masters of bfloat16 weights are kept as the weights and the 16 bits that they lack: 2 bytes a
  /// parameter instead of 4, and the same numbers bit for bit.
  bool splits_masters = false;
};

/// AdamW on float32 masters. Weights in bfloat16 are rounded from their masters after every step
/// (ops/split_float): on their own they would lose every update smaller than half their spacing.
/// Weights in float32 are their own masters. Gradients of micro-steps are summed in float32.
/// Memory: a step has masters of some 2^20 parameters at a time beside what stays.
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

  /// Masters (only those of bfloat16 weights; of split ones the bits that the weights lack) and
  /// moments under the parameters' names.
  formats::NamedTensors state() const;

  /// Reads states of both kinds of masters. For one of split masters the weights must be those
  /// that it was saved with; else they are rounded from the masters here.
  /// Errors: DataError if a tensor is missing or of another shape.
  void load_state(const formats::SafetensorsReader& reader, int64_t num_steps);

  /// Whether the weights have masters of their own.
  bool has_masters() const { return masters_kind_ != Masters::kNone; }

 private:
  enum class Masters { kNone, kFloat, kSplit };

  /// One update of a part of parameter `i`.
  void update(size_t i, int64_t first, int64_t count, double lr, double scale);
  void load_masters(const formats::SafetensorsReader& reader, size_t i);

  AdamWSettings settings_;
  std::vector<std::string> names_;
  std::vector<torch::Tensor> weights_;    // shared with the drafter
  std::vector<torch::Tensor> masters_;    // fp32; the weights themselves if those are fp32;
                                          // of split masters int16, what the weights lack
  std::vector<torch::Tensor> gradients_;  // fp32 sums
  std::vector<torch::Tensor> first_;      // fp32
  std::vector<torch::Tensor> second_;     // fp32
  Masters masters_kind_ = Masters::kNone;
  int64_t num_steps_ = 0;
};

}  // namespace draftsmith::train
