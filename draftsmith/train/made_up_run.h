// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <torch/types.h>

#include "draftsmith/memory/step_model.h"
#include "draftsmith/model/drafter.h"
#include "draftsmith/pipeline/train_batch.h"
#include "draftsmith/train/settings.h"
#include "draftsmith/train/step.h"

namespace draftsmith::train {

/// Where the anchors of a shape stand: apart, or side by side at the end of the sequence, where
/// attention's tiles are largest.
enum class Anchors { kSpread, kLate };

/// Micro-steps of a planned shape on made-up tensors: what a plan promises is measured on them, with
/// neither weights nor data. The same numbers in every run.
class MadeUpRun {
 public:
  explicit MadeUpRun(
      const memory::StepShape& shape,
      torch::Device device = torch::kCPU,
      Anchors anchors = Anchors::kSpread);

  int64_t lm_head_bytes() const { return static_cast<int64_t>(lm_head_.nbytes()); }
  const torch::Tensor& lm_head() const { return lm_head_; }
  const model::Drafter& drafter() const { return drafter_; }
  const LossSettings& loss() const { return loss_; }
  model::ForwardPlan plan() const { return {shape_.attention, shape_.recomputes_layers}; }

  /// Anchors at even distances stand `shift` further on.
  pipeline::TrainBatch make_batch(int64_t shift = 0) const;

  MicroStep run_micro_step(const pipeline::TrainBatch& batch, StepGraphs* graphs = nullptr) const;

 private:
  /// About N(0, scale^2).
  torch::Tensor make(at::IntArrayRef sizes, double scale) const;
  model::WeightMap make_weights() const;

  memory::StepShape shape_;
  torch::Device device_;
  Anchors anchors_;
  torch::Tensor lm_head_;  // [V, D]
  model::Drafter drafter_;
  LossSettings loss_;
};

/// A part of a micro-step: its time, and the most bytes that tensors take in it beside weights and
/// head. They are measured on the host only; 0 on a GPU.
struct MeasuredPart {
  double seconds = 0;
  int64_t planned_bytes = 0;
  int64_t measured_bytes = 0;
};

struct MeasuredStep {
  memory::StepShape shape;  // of what ran
  MeasuredPart forward, head, backward;

  double seconds() const { return forward.seconds + head.seconds + backward.seconds; }
};

/// The largest part of a shape, with as many layers if that can be, that has room in `budget` bytes
/// and takes at most `most_flops`: tokens and blocks are halved together, then layers left out. One
/// drafter, nothing beside it.
memory::StepShape shrink_shape(memory::StepShape shape, int64_t budget, double most_flops);

/// Forward, head and backward of this shape, the second time that they run.
MeasuredStep measure_step(const memory::StepShape& shape, torch::Device device);

}  // namespace draftsmith::train
