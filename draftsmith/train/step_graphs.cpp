// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/step_graphs.h"

#include <torch/csrc/autograd/autograd.h>

#include "draftsmith/base/error.h"

namespace draftsmith::train {
namespace {

/// A tensor like `wanted` with its contents, in the buffer if that is large enough, else in a new
/// one. Who holds the old one keeps it.
torch::Tensor place_in(torch::Tensor& buffer, const torch::Tensor& wanted) {
  if (!buffer.defined() || buffer.numel() < wanted.numel())
    buffer = torch::empty({wanted.numel()}, wanted.options());
  auto placed = buffer.narrow(0, 0, wanted.numel()).view(wanted.sizes());
  placed.copy_(wanted);
  return placed;
}

/// What a forward reads of a batch.
struct Inputs {
  torch::Tensor embedded, features;
  model::BlockPlaces places;

  std::vector<torch::Tensor*> tensors() {
    std::vector<torch::Tensor*> all = {
        &embedded,
        &features,
        &places.layout.anchors,
        &places.layout.keep,
        &places.layout.context_begin,
        &places.context_angles.cos,
        &places.context_angles.sin,
        &places.block_angles.cos,
        &places.block_angles.sin};
    for (auto& plan : places.layout.plans)
      all.push_back(&plan.lists);
    return all;
  }
};

}  // namespace

/// The recordings for one shape, with the tensors that they read.
class StepGraphs::Shape {
 public:
  Shape(
      const model::Drafter& drafter,
      const model::ForwardPlan& plan,
      Inputs inputs,
      Buffers& buffers)
      : drafter_(drafter), plan_(plan), inputs_(std::move(inputs)) {
    const auto tensors = inputs_.tensors();
    buffers.resize(tensors.size() + 1);
    for (size_t i = 0; i < tensors.size(); ++i)
      *tensors[i] = place_in(buffers[i], *tensors[i]);
    hidden_gradient_ = place_in(buffers.back(), torch::zeros_like(inputs_.embedded));
  }

  void record(ops::Recorder& recorder) {
    recorder.rehearse([this] {
      run_forward();
      run_backward();
    });
    forward_ = recorder.record([this] { return std::vector<torch::Tensor>{run_forward()}; });
    backward_ = recorder.record([this] { return run_backward(); });
  }

  torch::Tensor replay_forward(Inputs inputs) {
    const auto fresh = inputs.tensors();
    const auto own = inputs_.tensors();
    DS_CHECK(fresh.size() == own.size());
    for (size_t i = 0; i < own.size(); ++i) {
      DS_CHECK(own[i]->sizes() == fresh[i]->sizes());
      own[i]->copy_(*fresh[i], /*non_blocking=*/true);
    }
    return forward_->replay().front();
  }

  std::vector<torch::Tensor> replay_backward(const torch::Tensor& hidden_gradient) {
    hidden_gradient_.copy_(hidden_gradient);
    return backward_->replay();
  }

 private:
  torch::Tensor run_forward() {
    const at::AutoGradMode with_gradients(true);
    hidden_ = drafter_.forward(inputs_.embedded, inputs_.features, inputs_.places, plan_);
    return hidden_.detach();
  }

  std::vector<torch::Tensor> run_backward() {
    std::vector<torch::Tensor> parameters;
    for (const auto& [name, tensor] : drafter_.parameters())
      parameters.push_back(tensor);
    auto gradients = torch::autograd::grad(
        {hidden_}, parameters, {hidden_gradient_}, /*retain_graph=*/std::nullopt,
        /*create_graph=*/false, /*allow_unused=*/true);
    hidden_ = torch::Tensor();
    return gradients;
  }

  const model::Drafter& drafter_;
  model::ForwardPlan plan_;
  Inputs inputs_;
  torch::Tensor hidden_gradient_;  // [B, N K, D]
  torch::Tensor hidden_;           // from forward to backward, while either is recorded
  std::unique_ptr<ops::Recording> forward_, backward_;
};

StepGraphs::StepGraphs(
    model::Drafter drafter,
    const model::ForwardPlan& plan,
    std::unique_ptr<ops::Recorder> recorder)
    : drafter_(std::move(drafter)), plan_(plan), recorder_(std::move(recorder)) {}

StepGraphs::~StepGraphs() = default;

torch::Tensor StepGraphs::forward(const pipeline::TrainBatch& batch) {
  const at::NoGradGuard no_grad;
  Inputs inputs{
      batch.embedded, batch.features,
      drafter_.place_blocks(batch.blocks, plan_.attention, /*has_fixed_sizes=*/true)};
  auto& shape = shapes_[{batch.features.size(1), batch.embedded.size(1)}];
  if (shape == nullptr) {
    shape = std::make_unique<Shape>(drafter_, plan_, inputs, buffers_);
    shape->record(*recorder_);
  }
  last_ = shape.get();
  return last_->replay_forward(std::move(inputs));
}

std::vector<torch::Tensor> StepGraphs::backward(const torch::Tensor& hidden_gradient) {
  DS_CHECK(last_ != nullptr);
  const at::NoGradGuard no_grad;
  return last_->replay_backward(hidden_gradient);
}

}  // namespace draftsmith::train
