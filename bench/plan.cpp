// SPDX-License-Identifier: Apache-2.0
// The planner's bytes against the measured peak of tensor bytes of two training steps:
//   build/release/bin/bench_plan
#include <cmath>

#include "draftsmith/data/draft_blocks.h"
#include "draftsmith/memory/planner.h"
#include "draftsmith/train/optimizer.h"
#include "draftsmith/train/step.h"

#include <ATen/Parallel.h>

#include "bench/measure.h"

namespace draftsmith::bench {
namespace {

struct PlanCase {
  int64_t hidden, intermediate, heads, kv_heads, head_dim, layers, captured, vocab;
  int64_t tokens, blocks, block_size, window;
  bool is_bfloat16, has_teacher, recomputes;
  int64_t chunk_rows;
};

formats::DrafterConfig make_config(const PlanCase& c) {
  formats::DrafterConfig config;
  config.model_type = "qwen3";
  config.vocab_size = c.vocab;
  config.hidden_size = c.hidden;
  config.intermediate_size = c.intermediate;
  config.num_layers = c.layers;
  config.num_heads = c.heads;
  config.num_kv_heads = c.kv_heads;
  config.head_dim = c.head_dim;
  config.block_size = c.block_size;
  config.rope.theta = 10000;
  for (int64_t i = 0; i < c.captured; ++i)
    config.target_layer_ids.push_back(i);
  config.is_sliding.assign(static_cast<size_t>(c.layers), c.window > 0);
  config.sliding_window = c.window;
  return config;
}

struct Measured {
  int64_t planned, peak;
};

Measured run(const PlanCase& c) {
  const auto config = make_config(c);
  const auto dtype = c.is_bfloat16 ? torch::kBFloat16 : torch::kFloat;
  const auto lm_head = random_bfloat16({c.vocab, c.hidden}, 0.05, 1).to(dtype);
  memory::StepShape shape;
  shape.drafter = config;
  shape.target.vocab_size = c.vocab;
  shape.target.hidden_size = c.hidden;
  shape.element_bytes = c.is_bfloat16 ? 2 : 4;
  shape.target_element_bytes = shape.element_bytes;
  shape.context_tokens = c.tokens;
  shape.blocks = c.blocks;
  shape.chunk_rows = c.chunk_rows;
  shape.threads = at::get_num_threads();
  shape.has_teacher = c.has_teacher;
  shape.recomputes_layers = c.recomputes;

  const int64_t before = memory::host_bytes().live;
  model::WeightMap weights;
  for (const auto& spec : model::list_drafter_weights(config))
    weights[spec.name] = spec.shape.size() == 1 ? torch::ones(spec.shape, dtype)
                                                : random_bfloat16(spec.shape, 0.02, 2).to(dtype);
  const model::Drafter drafter(config, std::move(weights));
  train::AdamW optimizer(drafter.parameters(), {});
  data::BlockRows rows{
      torch::arange(c.tokens, torch::kLong).remainder(c.vocab).unsqueeze(0),
      torch::ones({1, c.tokens}, torch::kByte),
      {}};
  const auto anchors =
      (torch::arange(c.blocks, torch::kLong) * (c.tokens - c.block_size) / c.blocks)
          .to(torch::kLong)
          .unsqueeze(0);
  train::LossSettings loss;
  loss.kl_weight = c.has_teacher ? 0.15 : 0;
  loss.chunk_rows = c.chunk_rows;
  memory::reset_host_peak();
  for (int i = 0; i < 2; ++i) {
    pipeline::TrainBatch batch;
    batch.blocks = data::join_rows(data::make_draft_blocks(
        rows, {anchors, torch::ones_like(anchors, torch::kBool)}, {c.block_size, 0, 10}));
    batch.features = random_bfloat16({1, c.tokens, c.hidden * c.captured}, 1, 3).to(dtype);
    batch.teacher_states = random_bfloat16({1, c.tokens, c.hidden}, 1, 4).to(dtype);
    batch.embedded = random_bfloat16({1, c.blocks * c.block_size, c.hidden}, 1, 5).to(dtype);
    batch.tokens.lengths = {c.tokens};
    if (i == 0) memory::reset_host_peak();
    const auto step = train::run_micro_step(
        drafter, lm_head, batch, loss, true, {ops::AttentionMethod::kBlock, c.recomputes});
    optimizer.accumulate(step.gradients);
    optimizer.step(1e-4, 1 / step.sums.weight_sum, 1);
  }
  return {memory::plan_memory(shape).drafter_step, memory::host_bytes().peak - before};
}

}  // namespace
}  // namespace draftsmith::bench

int main() {
  using namespace draftsmith;
  using namespace draftsmith::bench;
  memory::install_host_allocator();
  print_header(
      {"hidden x MLP, heads", "layers, captured", "tokens, blocks", "window", "dtype", "recompute",
       "planned MiB", "measured MiB", "ratio"});
  const PlanCase cases[] = {
      {512, 1536, 8, 4, 64, 3, 3, 32000, 2048, 64, 16, 0, true, true, false, 512},
      {512, 1536, 8, 4, 64, 3, 3, 32000, 2048, 64, 16, 0, true, true, true, 512},
      {768, 2048, 12, 3, 64, 5, 5, 49152, 4096, 128, 16, 512, true, false, false, 1024},
      {1024, 3072, 16, 8, 128, 2, 4, 65000, 1024, 128, 16, 0, true, true, false, 256},
      {384, 1024, 6, 6, 64, 8, 2, 16000, 8192, 32, 32, 1024, false, true, false, 512},
      {384, 1024, 6, 6, 64, 8, 2, 16000, 8192, 32, 32, 1024, false, true, true, 128},
      {640, 2560, 10, 2, 64, 4, 6, 100000, 512, 256, 8, 0, true, true, false, 128},
      {256, 512, 4, 1, 64, 6, 3, 8000, 16384, 512, 8, 256, true, false, true, 2048},
      {896, 2432, 14, 2, 64, 4, 5, 151936, 3000, 100, 16, 2048, false, true, false, 64},
      {1024, 2816, 16, 4, 64, 5, 5, 32000, 6000, 200, 32, 2048, true, true, true, 1024}};
  double worst = 0;
  for (const auto& c : cases) {
    const auto [planned, peak] = run(c);
    const double ratio = static_cast<double>(planned) / static_cast<double>(peak);
    worst = std::max(worst, std::abs(ratio - 1));
    print_row(
        {fmt::format(
             "{} x {}, {}/{} of {}", c.hidden, c.intermediate, c.heads, c.kv_heads, c.head_dim),
         fmt::format("{}, {}", c.layers, c.captured),
         fmt::format("{}, {} x {}", c.tokens, c.blocks, c.block_size), fmt::format("{}", c.window),
         c.is_bfloat16 ? "bfloat16" : "float32", c.recomputes ? "layer" : "none",
         fmt::format("{:.1f}", static_cast<double>(planned) / (1 << 20)),
         fmt::format("{:.1f}", static_cast<double>(peak) / (1 << 20)),
         fmt::format("{:.3f}", ratio)});
  }
  fmt::print("\nlargest difference: {:.1f} %\n", 100 * worst);
}
