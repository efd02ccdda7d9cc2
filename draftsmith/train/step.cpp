// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/step.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "draftsmith/base/stopwatch.h"
#include "draftsmith/memory/stage.h"
#include "draftsmith/train/objective.h"

namespace draftsmith::train {

namespace {

/// A sum is finite if all its terms are; only if it is not, each is looked at.
bool is_finite(const torch::Tensor& tensor) {
  return tensor.sum(torch::kFloat).isfinite().item<bool>() || tensor.isfinite().all().item<bool>();
}

/// Called by autograd once all that flows into a parameter's gradient is summed.
struct PassOn : torch::autograd::PostAccumulateGradHook {
  PassOn(size_t number, const GradientSink& target) : parameter(number), sink(target) {}

  void operator()(const torch::Tensor& tensor) override {
    sink(parameter, std::exchange(tensor.mutable_grad(), torch::Tensor()));
  }

  size_t parameter;
  const GradientSink& sink;
};

/// Backward that hands gradients on as they come.
void run_backward(
    const torch::Tensor& loss,
    const std::vector<torch::Tensor>& parameters,
    const GradientSink& sink) {
  using torch::autograd::impl::set_post_acc_grad_hooks;
  struct Hooks {
    explicit Hooks(const std::vector<torch::Tensor>& hooked) : tensors(hooked) {}
    ~Hooks() {
      for (const auto& tensor : tensors) {
        set_post_acc_grad_hooks(tensor, nullptr);
        tensor.mutable_grad() = torch::Tensor();  // after an error one may be left
      }
    }
    const std::vector<torch::Tensor>& tensors;
  };
  const Hooks hooks(parameters);
  for (size_t i = 0; i < parameters.size(); ++i)
    set_post_acc_grad_hooks(parameters[i], std::make_unique<PassOn>(i, sink));
  torch::autograd::backward({loss});
}

/// Backward of a drafter whose forward was replayed.
std::vector<torch::Tensor>
replay_backward(StepGraphs& graphs, const torch::Tensor& loss_sum, const torch::Tensor& hidden) {
  const auto upstream = torch::autograd::grad(
      {loss_sum}, {hidden}, /*grad_outputs=*/{}, /*retain_graph=*/std::nullopt,
      /*create_graph=*/false, /*allow_unused=*/true)[0];
  return graphs.backward(upstream.defined() ? upstream : torch::zeros_like(hidden));
}

}  // namespace

MicroStep run_micro_step(
    const model::Drafter& drafter,
    const torch::Tensor& lm_head,
    const pipeline::TrainBatch& batch,
    const LossSettings& loss,
    bool needs_gradients,
    const model::ForwardPlan& plan,
    int64_t tree_budget,
    const GradientSink& sink,
    StepGraphs* graphs) {
  const at::AutoGradMode grad_mode(needs_gradients);
  std::vector<torch::Tensor> parameters;
  for (const auto& [name, tensor] : drafter.parameters())
    parameters.push_back(tensor.set_requires_grad(needs_gradients));

  const bool is_replayed = graphs != nullptr && needs_gradients;
  Stopwatch watch;
  const auto hidden = [&] {
    const memory::Stage stage("the drafter's forward");
    if (is_replayed) return graphs->forward(batch).detach().set_requires_grad(true);
    return drafter.forward(batch.embedded, batch.features, batch.blocks, plan);
  }();
  const bool is_sound = is_finite(hidden.detach());  // waits until a GPU has run the forward
  const double forward_seconds = watch.restart();
  if (!is_sound) {
    MicroStep broken;
    broken.sums.loss_sum = std::numeric_limits<double>::quiet_NaN();
    broken.sums.weight_sum = batch.blocks.weights.sum().item<double>();
    broken.hidden = hidden.detach();
    return broken;
  }
  const auto terms = [&] {
    const memory::Stage stage("lm_head and loss");
    return compute_objective(
        hidden, lm_head, batch.teacher_states, batch.blocks, loss,
        std::min(tree_budget, lm_head.size(0)));
  }();
  const auto& lengths = batch.tokens.lengths;
  MicroStep result;
  result.sums =
      sum_metrics(terms, batch.blocks, std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
  result.sums.expected = sum_expected_tokens(terms, batch.blocks, tree_budget);
  result.hidden = hidden.detach();
  result.sums.times.forward = forward_seconds;
  result.sums.times.head = watch.restart();
  if (needs_gradients) {
    const memory::Stage stage("the drafter's backward");
    if (is_replayed) {
      result.gradients = replay_backward(*graphs, terms.loss_sum, hidden);
      for (size_t i = result.gradients.size(); sink && i-- > 0;)
        if (result.gradients[i].defined()) sink(i, result.gradients[i]);
      if (sink) result.gradients.clear();
    } else if (sink) {
      run_backward(terms.loss_sum, parameters, sink);
    } else {
      result.gradients = torch::autograd::grad(
          {terms.loss_sum}, parameters, /*grad_outputs=*/{}, /*retain_graph=*/std::nullopt,
          /*create_graph=*/false, /*allow_unused=*/true);
    }
    result.sums.times.backward = watch.seconds();
  }
  return result;
}

}  // namespace draftsmith::train
