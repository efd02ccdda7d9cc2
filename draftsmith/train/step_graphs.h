// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "draftsmith/model/drafter.h"
#include "draftsmith/ops/recording.h"
#include "draftsmith/pipeline/train_batch.h"

namespace draftsmith::train {

/// Forward and backward of a drafter, recorded once for each shape of batches (data.static_shapes)
/// and replayed from then on. What depends on a batch's contents stays outside: the places of
/// blocks and the plans of attention become inputs, and the head with its choice of rows runs
/// between the two replays.
/// Memory: inputs of the largest shape, if that is the first one, and what lives within a step of it.
class StepGraphs {
 public:
  StepGraphs(
      model::Drafter drafter,  // shares its tensors
      const model::ForwardPlan& plan,
      std::unique_ptr<ops::Recorder> recorder);
  ~StepGraphs();

  /// As Drafter::forward, but detached; good until the next call.
  torch::Tensor forward(const pipeline::TrainBatch& batch);  // [B, N K, D]

  /// Gradients of the parameters, in their order, for the batch of the last forward; good until
  /// the next one. Those without any are undefined.
  std::vector<torch::Tensor> backward(const torch::Tensor& hidden_gradient);

  int64_t num_shapes() const { return static_cast<int64_t>(shapes_.size()); }

 private:
  class Shape;
  /// Memory for each input, of all shapes: one is replayed at a time.
  using Buffers = std::vector<torch::Tensor>;

  model::Drafter drafter_;
  model::ForwardPlan plan_;
  std::unique_ptr<ops::Recorder> recorder_;
  Buffers buffers_;
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Shape>> shapes_;  // by tokens and slots
  Shape* last_ = nullptr;
};

}  // namespace draftsmith::train
