// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include <ATen/Parallel.h>

#include "draftsmith/data/draft_blocks.h"
#include "draftsmith/memory/product_scratch.h"
#include "draftsmith/memory/step_model.h"
#include "draftsmith/train/optimizer.h"
#include "draftsmith/train/step.h"

#include "bench/measure.h"

namespace draftsmith::bench {

/// The sizes of a drafter and of its largest batch.
struct ShapeSizes {
  int64_t hidden, intermediate, heads, kv_heads, head_dim, layers, captured, vocab;
  int64_t tokens, blocks, block_size, window;
  bool is_bfloat16, has_teacher, recomputes;
  int64_t chunk_rows;
  int64_t tree_budget = 0;
  bool splits_masters = false;
  ops::AttentionMethod attention = ops::AttentionMethod::kBlock;
  ops::LossMethod loss = ops::LossMethod::kFused;
};

/// What the planner is told about them, with a target that has no layers.
inline memory::StepShape make_shape(const ShapeSizes& sizes) {
  memory::StepShape shape;
  auto& config = shape.drafter;
  config.model_type = "qwen3";
  config.vocab_size = sizes.vocab;
  config.hidden_size = sizes.hidden;
  config.intermediate_size = sizes.intermediate;
  config.num_layers = sizes.layers;
  config.num_heads = sizes.heads;
  config.num_kv_heads = sizes.kv_heads;
  config.head_dim = sizes.head_dim;
  config.block_size = sizes.block_size;
  config.rope.theta = 10000;
  for (int64_t i = 0; i < sizes.captured; ++i)
    config.target_layer_ids.push_back(i);
  config.is_sliding.assign(static_cast<size_t>(sizes.layers), sizes.window > 0);
  config.sliding_window = sizes.window;
  shape.target.vocab_size = sizes.vocab;
  shape.target.hidden_size = sizes.hidden;
  shape.element_bytes = shape.target_element_bytes = sizes.is_bfloat16 ? 2 : 4;
  shape.context_tokens = sizes.tokens;
  shape.blocks = sizes.blocks;
  shape.chunk_rows = sizes.chunk_rows;
  shape.threads = at::get_num_threads();
  shape.product_scratch = memory::measure_product_scratch();
  shape.has_teacher = sizes.has_teacher;
  shape.recomputes_layers = sizes.recomputes;
  shape.tree_budget = sizes.tree_budget;
  shape.splits_masters = sizes.splits_masters;
  shape.attention = sizes.attention;
  shape.loss = sizes.loss;
  return shape;
}

/// Where the anchors of a shape stand: apart, or side by side at the end of the sequence, where
/// attention's tiles are largest.
enum class Anchors { kSpread, kLate };

/// Training steps of a shape on made-up tensors: what a plan promises is measured on them.
class ShapedRun {
 public:
  explicit ShapedRun(
      const memory::StepShape& shape,
      torch::Device device = torch::kCPU,
      Anchors anchors = Anchors::kSpread)
      : shape_(shape),
        device_(device),
        anchors_(anchors),
        lm_head_(make({shape.drafter.vocab_size, shape.drafter.hidden_size}, 0.05)),
        drafter_(shape.drafter, make_weights()),
        optimizer_(drafter_.parameters(), {.splits_masters = shape.splits_masters}) {
    loss_.kl_weight = shape.has_teacher ? 0.15 : 0;
    loss_.chunk_rows = shape.chunk_rows;
    if (shape.loss == ops::LossMethod::kRecompute) loss_.method = "recompute";
    if (shape.loss == ops::LossMethod::kFull) loss_.method = "full";
  }

  int64_t lm_head_bytes() const { return static_cast<int64_t>(lm_head_.nbytes()); }
  const torch::Tensor& lm_head() const { return lm_head_; }
  const model::Drafter& drafter() const { return drafter_; }
  const train::LossSettings& loss() const { return loss_; }
  model::ForwardPlan plan() const {
    return {shape_.attention, shape_.recomputes_layers};
  }

  train::MicroStep run_micro_step(
      const pipeline::TrainBatch& batch,
      train::StepGraphs* graphs = nullptr) const {
    return train::run_micro_step(
        drafter_, lm_head_, batch, loss_, true, plan(), shape_.tree_budget, {}, graphs);
  }

  void run_step() {
    const auto batch = make_batch();
    const auto step = run_micro_step(batch);
    optimizer_.accumulate(step.gradients);
    optimizer_.step(1e-4, 1 / step.sums.weight_sum, 1);
  }

  /// Copies of all that a checkpoint holds.
  std::vector<torch::Tensor> copy_state() const {
    std::vector<torch::Tensor> copies;
    for (const auto& [name, tensor] : drafter_.parameters())
      copies.push_back(tensor.detach().clone());
    for (const auto& [name, tensor] : optimizer_.state())
      copies.push_back(tensor.clone());
    return copies;
  }

  /// Anchors at even distances stand `shift` further on.
  pipeline::TrainBatch make_batch(int64_t shift = 0) const {
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

 private:
  torch::Tensor make(at::IntArrayRef sizes, double scale) const {
    const auto dtype = shape_.element_bytes == 2 ? torch::kBFloat16 : torch::kFloat;
    if (device_.is_cpu()) return random_bfloat16(sizes, scale, 1).to(dtype);
    return torch::empty(sizes, torch::TensorOptions(dtype).device(device_)).normal_(0, scale);
  }

  model::WeightMap make_weights() const {
    model::WeightMap weights;
    for (const auto& spec : model::list_drafter_weights(shape_.drafter))
      weights[spec.name] =
          spec.shape.size() == 1 ? make(spec.shape, 0) + 1 : make(spec.shape, 0.02);
    return weights;
  }

  memory::StepShape shape_;
  torch::Device device_;
  Anchors anchors_;
  torch::Tensor lm_head_;  // [V, D]
  model::Drafter drafter_;
  train::AdamW optimizer_;
  train::LossSettings loss_;
};

}  // namespace draftsmith::bench
