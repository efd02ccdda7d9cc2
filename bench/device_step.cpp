// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "draftsmith/memory/planner.h"
#include "draftsmith/ops/cuda/graph.h"

#include "bench/device_report.h"
#include "bench/shaped_run.h"

namespace draftsmith::bench {
namespace {

constexpr double kMustOfRate = 0.45;  // of the large product's rate, for a whole step
constexpr double kMustOfPlan = 0.03;

/// The reference case with as many context tokens as the device holds, and chunks as planned.
memory::StepShape choose_shape(bool is_quick) {
  ShapeSizes sizes{
      5120,
      17408,
      32,
      8,
      128,
      5,
      5,
      248320,
      is_quick ? 4096 : 49152,
      is_quick ? 128 : 1024,
      32,
      0,
      /*is_bfloat16=*/true,
      /*has_teacher=*/true,
      /*recomputes=*/false,
      /*chunk_rows=*/8192};
  const auto room =
      static_cast<int64_t>(0.93 * static_cast<double>(ops::cuda::free_bytes(kDevice)));
  for (;; sizes.tokens -= 4096) {
    auto shape = make_shape(sizes);
    shape.is_on_gpu = true;
    const int64_t lm_head = sizes.vocab * sizes.hidden * 2;
    if (memory::plan_memory(shape).drafter_step + lm_head <= room || sizes.tokens <= 4096)
      return shape;
  }
}

/// Products of a step: those of the layers and the head, and 2 forward and 5 backward ones of
/// every visible key.
double count_flops(const memory::StepShape& shape, const data::DraftBlocks& blocks) {
  const auto& d = shape.drafter;
  const auto seen = blocks.layout.anchors - blocks.layout.context_begin + d.block_size;
  const auto keys = static_cast<double>(seen.sum().item<int64_t>());
  const double attention =
      7 * 2.0 * keys * static_cast<double>(d.block_size * d.num_heads * d.head_dim * d.num_layers);
  return memory::count_step_flops(shape) + attention;
}

double relative_difference(const torch::Tensor& got, const torch::Tensor& wanted) {
  const auto norm = [](const torch::Tensor& x) {
    return x.to(torch::kFloat).norm().item<double>();
  };
  return norm(got - wanted) / norm(wanted);
}

std::string name_of(const memory::StepShape& shape) {
  return fmt::format(
      "step {} tokens, {} x {}", shape.context_tokens, shape.blocks, shape.drafter.block_size);
}

/// Two steps against the planner, then one alone against its products.
void run_eager(Report& report, const Rates& rates, const memory::StepShape& shape, bool is_quick) {
  const auto name = name_of(shape);
  const int64_t before = ops::cuda::device_bytes(kDevice).live;
  ShapedRun run(shape, kDevice);
  ops::cuda::reset_device_peak(kDevice);
  run.run_step();
  run.run_step();
  wait_for_device();
  report.planned(
      name + ": memory planned, measured", memory::plan_memory(shape).drafter_step,
      ops::cuda::device_bytes(kDevice).peak - before - run.lm_head_bytes(),
      is_quick ? 0.1 : kMustOfPlan);
  const auto batch = run.make_batch();
  const double floor = count_flops(shape, batch.blocks) / rates.flops;
  report.row(
      name, measure([&] { run.run_micro_step(batch); }, 3), floor, is_quick ? 0 : 1 / kMustOfRate);
  report.row(name + " with the update", measure([&] { run.run_step(); }, 3), floor);
}

/// Replays give the gradients of an eager step; how long both take.
void run_replays(Report& report, const Rates& rates, const memory::StepShape& shape) {
  const auto name = name_of(shape);
  const ShapedRun run(shape, kDevice);
  const auto batch = run.make_batch();
  const double floor = count_flops(shape, batch.blocks) / rates.flops;
  report.row(name, measure([&] { run.run_micro_step(batch); }, 3), floor);
  const auto eager = run.run_micro_step(batch);
  train::StepGraphs graphs(run.drafter(), run.plan(), ops::cuda::make_graph_recorder(kDevice));
  const auto replayed = run.run_micro_step(batch, &graphs);
  double largest = 0;
  for (size_t i = 0; i < eager.gradients.size(); ++i)
    largest = std::max(largest, relative_difference(replayed.gradients[i], eager.gradients[i]));
  report.check(fmt::format("{}, replayed: differs by {:.1e}", name, largest), largest <= 0x1p-8);
  report.row(name + ", replayed", measure([&] { run.run_micro_step(batch, &graphs); }, 3), floor);
}

}  // namespace

void run_step(Report& report, const Rates& rates, bool is_quick) {
  const auto shape = choose_shape(is_quick);
  run_eager(report, rates, shape, is_quick);
  // Replays hold their inputs twice, and are worth most where kernels are short.
  auto smaller = shape;
  smaller.context_tokens = std::min<int64_t>(shape.context_tokens, 8192);
  smaller.blocks = std::min<int64_t>(shape.blocks, 256);
  run_replays(report, rates, smaller);
}

}  // namespace draftsmith::bench
