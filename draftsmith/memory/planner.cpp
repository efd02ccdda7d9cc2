// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/memory/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>

#include "draftsmith/base/error.h"
#include "draftsmith/memory/product_kernels.h"
#include "draftsmith/memory/product_scratch.h"
#include "draftsmith/model/settings.h"
#include "draftsmith/ops/cuda/devices.h"
#include "draftsmith/ops/lm_head_loss.h"
#include "draftsmith/ops/product.h"

namespace draftsmith::memory {
namespace {

constexpr double kAllocatorSlack = 0.01;  // small tensors that no part names
constexpr int64_t kSmallestChunk = 16;    // rows
constexpr double kShareOfAvailable = 0.9;
constexpr double kShareOfGpu = 0.95;

/// Recomputation that the settings allow, cheapest first.
std::vector<bool> list_recomputation(const MemorySettings& settings) {
  if (settings.recompute == "none") return {false};
  if (settings.recompute == "layer") return {true};
  return {false, true};
}

/// Chunk rows that may be chosen, fastest first.
std::vector<int64_t> list_chunk_rows(const StepShape& shape) {
  if (shape.loss == ops::LossMethod::kFull) return {shape.supervised_rows()};
  if (shape.chunk_rows > 0) return {shape.chunk_rows};
  if (shape.loss == ops::LossMethod::kRecompute) return {ops::kRecomputedRows};
  std::vector<int64_t> rows = {
      ops::default_chunk_rows(shape.drafter.vocab_size, shape.element_bytes)};
  while (rows.back() > kSmallestChunk)
    rows.push_back(std::max(kSmallestChunk, rows.back() / 2));
  return rows;
}

std::optional<MemoryPlan>
find_plan(StepShape shape, const MemorySettings& settings, int64_t budget) {
  for (const bool recomputes : list_recomputation(settings)) {
    for (const int64_t rows : list_chunk_rows(shape)) {
      StepShape chosen = shape;
      chosen.recomputes_layers = recomputes;
      chosen.chunk_rows = rows;
      const auto plan = plan_memory(chosen);
      if (plan.peak() <= budget) return plan;
    }
  }
  return std::nullopt;
}

int64_t smallest_peak(const StepShape& shape, const MemorySettings& settings) {
  int64_t smallest = std::numeric_limits<int64_t>::max();
  for (const bool recomputes : list_recomputation(settings)) {
    StepShape chosen = shape;
    chosen.recomputes_layers = recomputes;
    chosen.chunk_rows = list_chunk_rows(shape).back();
    smallest = std::min(smallest, plan_memory(chosen).peak());
  }
  return smallest;
}

/// Halves batch and anchors together until something fits.
std::string suggest(StepShape shape, const MemorySettings& settings, int64_t budget) {
  while (shape.context_tokens > 64 && shape.blocks > 1) {
    shape.context_tokens /= 2;
    shape.blocks /= 2;
    if (find_plan(shape, settings, budget))
      return fmt::format(
          "--data.tokens_per_batch={} --data.num_anchors={}", shape.context_tokens, shape.blocks);
  }
  return fmt::format("--memory.budget={}", print_bytes(smallest_peak(shape, settings) * 21 / 20));
}

}  // namespace

int64_t MemoryPlan::scratch() const {
  const bool has_half_target = shape.shares_target && shape.target_element_bytes == 2;
  if (shape.element_bytes != 2 && !has_half_target) return 0;
  // Each worker makes a product at a time, or each of its threads one of attention's smaller ones.
  const int64_t workers = shape.drafters + shape.target_workers;
  const int64_t parts = ops::kProductCells / ops::kProductCellsOfThread;
  return workers * std::max(parts, shape.threads) * shape.product_scratch / parts;
}

int64_t MemoryPlan::peak() const {
  const int64_t most = std::max({step(), evaluation, saving});
  return most + static_cast<int64_t>(kAllocatorSlack * static_cast<double>(most)) +
         beside_tensors();
}

MemoryPlan plan_memory(const StepShape& shape) {
  MemoryPlan plan;
  plan.shape = shape;
  Ledger ledger;
  add_state(ledger, shape);
  plan.state = ledger.live();
  add_other_drafters(ledger, shape);
  add_target_forward(ledger, shape);
  plan.target_forward = ledger.peak();
  plan.parts = ledger.parts_at_peak();
  Ledger step;
  add_state(step, shape);
  add_other_drafters(step, shape);
  add_batches_ahead(step, shape);
  add_target_forward(step, shape);
  step.restart_peak();
  Ledger evaluation = step;
  add_evaluation(evaluation, shape);
  plan.evaluation = evaluation.peak();
  int64_t most = plan.target_forward;
  const auto play = [&](int64_t& peak, const auto& add_part) {
    step.restart_peak();
    add_part(step, shape);
    peak = step.peak();
    if (peak > most) plan.parts = step.parts_at_peak();
    most = std::max(most, peak);
  };
  play(plan.forward, add_drafter_forward);
  play(plan.head, add_head);
  play(plan.backward, add_drafter_backward);
  plan.drafter_step = std::max({plan.forward, plan.head, plan.backward});
  // A snapshot of weights, masters and moments is written while training goes on.
  plan.snapshot =
      count_drafter_parameters(shape.drafter) * (shape.element_bytes + shape.master_bytes() + 8);
  plan.saving = plan.step() + plan.snapshot;
  // A state in shards is gathered before it is copied.
  if (shape.optimizer_shards > 1)
    plan.saving += plan.snapshot - count_drafter_parameters(shape.drafter) * shape.element_bytes;
  if (!shape.has_target_copy)
    plan.mapped = count_loaded_parameters(shape) * shape.target_element_bytes;
  if (shape.product_kernel > 0)
    plan.kernels =
        shape.product_kernel * std::min(kMostProductKernels, count_product_kernels(shape));
  plan.step_flops = count_step_flops(shape);
  StepShape cheapest = shape;
  cheapest.recomputes_layers = false;
  plan.cheapest_flops = count_step_flops(cheapest);
  return plan;
}

MemoryPlan run_in_turn(const MemoryPlan& plan) {
  StepShape shape = plan.shape;
  shape.target_workers = shape.waiting_batches = 0;
  return plan_memory(shape);
}

MemoryPlan choose_plan(StepShape shape, const MemorySettings& settings, int64_t budget) {
  if (shape.target_workers > 0) {
    // Running ahead is worth less than what it would displace.
    StepShape ahead = shape;
    ahead.recomputes_layers = list_recomputation(settings).front();
    ahead.chunk_rows = list_chunk_rows(shape).front();
    const auto plan = plan_memory(ahead);
    if (plan.peak() <= budget) return plan;
    shape.target_workers = shape.waiting_batches = 0;
  }
  if (auto plan = find_plan(shape, settings, budget)) return *plan;
  throw DeviceError(
      {.what = "memory for the run",
       .expected = fmt::format("a budget of {}", print_bytes(smallest_peak(shape, settings))),
       .got = print_bytes(budget),
       .where = "plan",
       .hint = suggest(shape, settings, budget)});
}

int64_t find_budget(const MemorySettings& settings, const std::string& device) {
  const int64_t budget = parse_bytes(settings.budget, "memory.budget");
  if (budget > 0) return budget;
  const auto place = model::parse_device(device, "pipeline.drafter_devices");
  if (!place.is_cpu())
    return static_cast<int64_t>(kShareOfGpu * static_cast<double>(ops::cuda::free_bytes(place)));
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  int64_t kilobytes = 0;
  while (file >> key >> kilobytes >> unit)
    if (key == "MemAvailable:")
      return static_cast<int64_t>(kShareOfAvailable * static_cast<double>(kilobytes << 10));
  return std::numeric_limits<int64_t>::max();
}

std::string print_plan(const MemoryPlan& plan, int64_t budget) {
  const StepShape& s = plan.shape;
  std::string text;
  const auto line = [&](const std::string& name, int64_t bytes) {
    text += fmt::format("  {:<46} {:>12}\n", name, print_bytes(bytes));
  };
  text += fmt::format(
      "drafter of {:.3f} billion parameters; {} context tokens, {} blocks of {} = {} rows\n",
      static_cast<double>(count_drafter_parameters(s.drafter)) / 1e9, s.context_tokens, s.blocks,
      s.drafter.block_size, s.rows());
  text += "at the peak:\n";
  for (const auto& [part, bytes] : plan.parts)
    if (bytes > 0) line(part, bytes);
  text += "phases:\n";
  line("state that stays, moments included", plan.state);
  line("target's forward", plan.target_forward);
  line("drafter's forward", plan.forward);
  line("lm_head and loss", plan.head);
  line("drafter's backward", plan.backward);
  line("training step 1", plan.step());
  line("training step 2 (moments exist from the start)", plan.step());
  line("evaluation", plan.evaluation);
  line("a step while a checkpoint is written", plan.saving);
  if (plan.scratch() > 0) line("scratch of matrix products", plan.scratch());
  if (plan.kernels > 0) line("kernels compiled for matrix products", plan.kernels);
  line("peak, allocator slack included", plan.peak());
  line("target's weights, mapped from its files", plan.mapped);
  text += fmt::format(
      "chosen: {}, {} rows of logits at a time{}\n",
      s.recomputes_layers ? "layers are computed again in backward" : "nothing is recomputed",
      s.chunk_rows,
      s.recomputes_layers ? fmt::format(
                                " ({:.0f} % more arithmetic a step)",
                                100 * (plan.step_flops / plan.cheapest_flops - 1))
                          : "");
  if (s.target_workers > 0)
    text += fmt::format(
        "{} target workers run ahead, and up to {} batches wait\n", s.target_workers,
        s.waiting_batches);
  if (s.drafters > 1) text += fmt::format("{} drafters share this memory\n", s.drafters);
  if (s.optimizer_shards > 1)
    text += fmt::format("masters and moments are divided among {} ranks\n", s.optimizer_shards);
  text += fmt::format("budget: {}\n", print_bytes(budget));
  return text;
}

}  // namespace draftsmith::memory
