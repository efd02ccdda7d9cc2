// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/made_up_run.h"

#include <algorithm>

#include "draftsmith/base/stopwatch.h"
#include "draftsmith/data/draft_blocks.h"
#include "draftsmith/memory/host_allocator.h"
#include "draftsmith/memory/planner.h"
#include "draftsmith/model/weights.h"

namespace draftsmith::train {
namespace {

/// On the host, quickly: beyond so many numbers they come again. The count is prime, so that no two
/// rows of a matrix are the same.
constexpr int64_t kDistinctNumbers = 16777213;

torch::Tensor make_on_host(at::IntArrayRef sizes, double scale) {
  const auto generator = at::detail::createCPUGenerator(1);
  const int64_t count = c10::multiply_integers(sizes);
  const auto first = torch::empty({std::min(count, kDistinctNumbers)}, torch::kBFloat16)
                         .normal_(0, scale, generator);
  if (count <= kDistinctNumbers) return first.view(sizes);
  auto all = torch::empty({count}, torch::kBFloat16);
  for (int64_t begin = 0; begin < count; begin += kDistinctNumbers) {
    const int64_t part = std::min(kDistinctNumbers, count - begin);
    all.narrow(0, begin, part).copy_(first.narrow(0, 0, part));
  }
  return all.view(sizes);
}

}  // namespace

MadeUpRun::MadeUpRun(const memory::StepShape& shape, torch::Device device, Anchors anchors)
    : shape_(shape),
      device_(device),
      anchors_(anchors),
      lm_head_(make({shape.drafter.vocab_size, shape.drafter.hidden_size}, 0.05)),
      drafter_(shape.drafter, make_weights()) {
  loss_.kl_weight = shape.has_teacher ? 0.15 : 0;
  loss_.chunk_rows = shape.chunk_rows;
  if (shape.loss == ops::LossMethod::kRecompute) loss_.method = "recompute";
  if (shape.loss == ops::LossMethod::kFull) loss_.method = "full";
}

pipeline::TrainBatch MadeUpRun::make_batch(int64_t shift) const {
  const auto& d = shape_.drafter;
  const int64_t T = shape_.context_tokens, N = shape_.blocks, K = d.block_size;
  const auto numbers = torch::arange(N, torch::kLong);
  const auto anchors =
      (anchors_ == Anchors::kSpread ? numbers * (T - K - shift) / N + shift : numbers + T - K - N)
          .to(torch::kLong)
          .unsqueeze(0);
  pipeline::TrainBatch batch;
  batch.blocks = data::join_rows(data::make_draft_blocks(
      {torch::arange(T, torch::kLong).remainder(d.vocab_size).unsqueeze(0),
       torch::ones({1, T}, torch::kByte),
       {}},
      {anchors, torch::ones_like(anchors, torch::kBool)}, {K, 0, 10}));
  const auto captured = static_cast<int64_t>(d.target_layer_ids.size());
  batch.features = make({1, T, d.hidden_size * captured}, 1);
  batch.teacher_states = make({1, T, d.hidden_size}, 1);
  batch.embedded = make({1, N * K, d.hidden_size}, 1);
  batch.tokens.lengths = {T};
  return batch;
}

MicroStep MadeUpRun::run_micro_step(const pipeline::TrainBatch& batch, StepGraphs* graphs) const {
  return train::run_micro_step(
      drafter_, lm_head_, batch, loss_, true, plan(), shape_.tree_budget, {}, graphs);
}

torch::Tensor MadeUpRun::make(at::IntArrayRef sizes, double scale) const {
  const auto dtype = shape_.element_bytes == 2 ? torch::kBFloat16 : torch::kFloat;
  if (device_.is_cpu()) return make_on_host(sizes, scale).to(dtype);
  return torch::empty(sizes, torch::TensorOptions(dtype).device(device_)).normal_(0, scale);
}

model::WeightMap MadeUpRun::make_weights() const {
  model::WeightMap weights;
  for (const auto& spec : model::list_drafter_weights(shape_.drafter))
    weights[spec.name] = spec.shape.size() == 1 ? make(spec.shape, 0) + 1 : make(spec.shape, 0.02);
  return weights;
}

memory::StepShape shrink_shape(memory::StepShape shape, int64_t budget, double most_flops) {
  shape.drafters = shape.optimizer_shards = 1;
  shape.target_workers = shape.waiting_batches = 0;
  shape.has_target_copy = shape.has_stored_features = false;
  const auto fits = [&] {
    const auto plan = memory::plan_memory(shape);
    const int64_t fixed = (memory::count_drafter_parameters(shape.drafter) +
                           shape.drafter.vocab_size * shape.drafter.hidden_size) *
                          shape.element_bytes;
    return plan.drafter_step - plan.state + fixed <= budget &&
           memory::count_step_flops(shape) <= most_flops;
  };
  while (!fits()) {
    if (shape.blocks > 1 && shape.context_tokens / 2 >= 4 * shape.drafter.block_size) {
      shape.blocks /= 2;
      shape.context_tokens /= 2;
    } else if (shape.drafter.num_layers > 1) {
      shape.drafter.is_sliding.resize(static_cast<size_t>(--shape.drafter.num_layers));
    } else {
      break;
    }
  }
  return shape;
}

MeasuredStep measure_step(const memory::StepShape& shape, torch::Device device) {
  const MadeUpRun run(shape, device);
  run.run_micro_step(run.make_batch());
  memory::reset_host_peak();
  const int64_t before = memory::host_bytes().live;
  const auto batch = run.make_batch();
  const auto wait = [&](const torch::Tensor& tensor) { tensor.sum().item<double>(); };
  wait(batch.features);
  const Stopwatch watch;
  const auto step = run.run_micro_step(batch);
  wait(step.gradients.front());
  const double seconds = watch.seconds();
  const auto plan = memory::plan_memory(shape);
  const auto peaks = memory::host_phase_peaks();
  const auto part = [&](double part_seconds, int64_t planned, const char* phase) {
    const auto peak = peaks.find(phase);
    const bool is_measured = device.is_cpu() && peak != peaks.end();
    return MeasuredPart{
        part_seconds, planned - plan.state, is_measured ? peak->second - before : 0};
  };
  const auto& times = step.sums.times;
  return {
      shape, part(times.forward, plan.forward, "the drafter's forward"),
      part(times.head, plan.head, "lm_head and loss"),
      // The rest: a GPU is still at work when the host is done.
      part(seconds - times.forward - times.head, plan.backward, "the drafter's backward")};
}

}  // namespace draftsmith::train
