// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "draftsmith/formats/safetensors.h"
#include "draftsmith/pipeline/ranks.h"
#include "draftsmith/train/gradient_buckets.h"

namespace draftsmith::train {

struct AdamWSettings {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0;
  double clip_norm = 1.0;  // 0 = none
  /// Each rank keeps masters and moments of its own slices only, updates those, and gathers the
  /// weights. The same bits on the CPU.
  bool shards_state = false;
  /// Masters of bfloat16 weights are kept as the weights and the 16 bits that they lack: 2 bytes a
  /// parameter instead of 4, and the same numbers bit for bit. Not beside shards_state.
  bool splits_masters = false;
};

/// AdamW on float32 masters. Weights in bfloat16 are rounded from their masters after every step
/// (ops/split_float): on their own they would lose every update smaller than half their spacing.
/// Weights in float32 are their own masters. Gradients of micro-steps are summed in float32.
/// Memory: a step has masters of some 2^20 parameters at a time beside what stays.
/// Of several ranks each calls `reduce_gradients`, `gradient_norm`, `step` and `state` at the same
/// time as the others.
class AdamW {
 public:
  using Parameters = std::vector<std::pair<std::string, torch::Tensor>>;

  AdamW(const Parameters& parameters, const AdamWSettings& settings, pipeline::Ranks ranks = {});

  /// Adds the gradients of one micro-step, in the order of the parameters; an undefined one is 0.
  void accumulate(const std::vector<torch::Tensor>& gradients);

  /// Adds the gradient of one parameter, as soon as backward has made it.
  void add_gradient(size_t parameter, const torch::Tensor& gradient) {
    gradients_.add(parameter, gradient);
  }
  /// From now on gradients that are added begin their way to the other ranks.
  void begin_last_micro_step() { gradients_.begin_last_micro_step(); }
  /// Sums over ranks, whatever was added; one without a batch adds nothing.
  void reduce_gradients() { gradients_.reduce(); }

  /// Forgets what was accumulated.
  void clear_gradients() { gradients_.clear(); }

  /// The L2 norm of the accumulated gradients times `scale`.
  double gradient_norm(double scale) const { return scale * gradients_.norm(); }

  /// Updates with the accumulated gradients times `scale`, clipped by `norm` (from
  /// `gradient_norm`) if that is above clip_norm, and forgets them.
  void step(double lr, double scale, double norm);

  int64_t num_steps() const { return num_steps_; }

  /// Masters (only those of bfloat16 weights; of split ones the bits that the weights lack) and
  /// moments under the parameters' names. A sharded state is gathered: whole on the first rank,
  /// empty on the others.
  formats::NamedTensors state() const;

  /// Reads states of both kinds of masters. For one of split masters the weights must be those
  /// that it was saved with; else they are rounded from the masters here.
  /// Errors: DataError if a tensor is missing or of another shape.
  void load_state(const formats::SafetensorsReader& reader, int64_t num_steps);

  /// Whether the weights have masters of their own.
  bool has_masters() const { return masters_ != Masters::kNone; }

 private:
  enum class Masters { kNone, kFloat, kSplit };

  /// A whole parameter, or a slice of one, with its float32 state.
  struct Part {
    Slice slice;
    torch::Tensor weight;  // shared with the drafter
    torch::Tensor master;  // the weight itself if that is float32; if split what the weight lacks
    torch::Tensor gradient;
    torch::Tensor first;
    torch::Tensor second;
  };

  bool is_sharded() const { return settings_.shards_state && ranks_.size() > 1; }
  /// The slice of a parameter's tensor; the tensor itself if the state is whole.
  torch::Tensor cut(const torch::Tensor& whole, const Slice& slice) const;
  /// One update of the elements [first, first + count) of a part.
  void update(const Part& part, int64_t first, int64_t count, double lr, double scale);
  /// The master of a part, of a state that was saved with split masters.
  void load_split_master(const torch::Tensor& low, const Part& part);
  /// The parts' weights to all ranks.
  void gather_weights();
  /// Whole tensors, in the order of the parameters, from `member` of every rank's parts.
  std::vector<torch::Tensor> gather(torch::Tensor Part::*member) const;

  AdamWSettings settings_;
  pipeline::Ranks ranks_;
  std::vector<std::string> names_;
  std::vector<torch::Tensor> weights_;  // shared with the drafter
  GradientBuckets gradients_;
  std::vector<Part> parts_;
  Masters masters_ = Masters::kNone;
  int64_t num_steps_ = 0;
};

}  // namespace draftsmith::train
