// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <ATen/Parallel.h>

#include "draftsmith/memory/product_scratch.h"
#include "draftsmith/memory/step_model.h"
#include "draftsmith/train/made_up_run.h"
#include "draftsmith/train/optimizer.h"

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
  memory::measure_products(shape);
  shape.has_teacher = sizes.has_teacher;
  shape.recomputes_layers = sizes.recomputes;
  shape.tree_budget = sizes.tree_budget;
  shape.splits_masters = sizes.splits_masters;
  shape.attention = sizes.attention;
  shape.loss = sizes.loss;
  return shape;
}

/// Training steps of a shape on made-up tensors: what a plan promises is measured on them.
class ShapedRun : public train::MadeUpRun {
 public:
  explicit ShapedRun(
      const memory::StepShape& shape,
      torch::Device device = torch::kCPU,
      train::Anchors anchors = train::Anchors::kSpread)
      : MadeUpRun(shape, device, anchors),
        optimizer_(drafter().parameters(), {.splits_masters = shape.splits_masters}) {}

  void run_step() {
    const auto batch = make_batch();
    const auto step = run_micro_step(batch);
    optimizer_.accumulate(step.gradients);
    optimizer_.step(1e-4, 1 / step.sums.weight_sum, 1);
  }

  /// Copies of all that a checkpoint holds.
  std::vector<torch::Tensor> copy_state() const {
    std::vector<torch::Tensor> copies;
    for (const auto& [name, tensor] : drafter().parameters())
      copies.push_back(tensor.detach().clone());
    for (const auto& [name, tensor] : optimizer_.state())
      copies.push_back(tensor.clone());
    return copies;
  }

 private:
  train::AdamW optimizer_;
};

}  // namespace draftsmith::bench
