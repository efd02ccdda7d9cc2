// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "draftsmith/memory/settings.h"
#include "draftsmith/memory/step_model.h"

namespace draftsmith::memory {

/// What a run needs, phase by phase. Bytes are of tensors; mapped files are counted apart.
struct MemoryPlan {
  StepShape shape;                       // with what was chosen
  std::map<std::string, int64_t> parts;  // of the peak, by part
  int64_t state = 0;                     // weights, masters, gradients, moments, from the start on
  int64_t target_forward = 0;            // peak while the target runs
  int64_t forward = 0;                   // peak of the drafter's forward,
  int64_t head = 0;                      // of lm_head and loss,
  int64_t backward = 0;                  // and of the drafter's backward
  int64_t drafter_step = 0;              // the largest of the three
  int64_t evaluation = 0;                // peak of a forward on held out sequences
  int64_t snapshot = 0;                  // the state's copy for a checkpoint
  int64_t saving = 0;                    // a step while a snapshot is written
  int64_t kernels = 0;                   // that the library keeps of a step's bfloat16 products
  int64_t mapped = 0;                    // of the target's files, shared with the system's cache
  double step_flops = 0;                 // of the drafter
  double cheapest_flops = 0;             // the same without recomputation

  /// The most tensor bytes of a training step, the first one or any: moments exist from the start.
  int64_t step() const { return std::max(target_forward, drafter_step); }
  /// Beside tensors, while bfloat16 products are made by all that share the host's memory.
  int64_t scratch() const;
  int64_t beside_tensors() const { return scratch() + kernels; }
  /// The most bytes at any time: of tensors, with allocator slack, and beside them.
  int64_t peak() const;
};

/// The bytes of a run of this shape.
MemoryPlan plan_memory(const StepShape& shape);

/// The same plan, the target running in turn with the drafter instead of ahead of it.
MemoryPlan run_in_turn(const MemoryPlan& plan);

/// Chooses the cheapest of: no recomputation or that of layers (as settings.recompute allows), and
/// the most rows of logits at a time (`shape.chunk_rows` if that is set), so that the plan's peak
/// is within `budget`. Targets that share the drafter's memory run ahead of it only if that leaves
/// these choices as they would be without, else in turn with it (`shape.target_workers` 0).
/// Errors: DeviceError if nothing fits, saying what is needed at least, and which data.num_anchors
/// and data.tokens_per_batch would fit.
MemoryPlan choose_plan(StepShape shape, const MemorySettings& settings, int64_t budget);

/// settings.budget, or what the drafter's device ("cpu", "cuda:0") has: nine tenths of the memory
/// that is available now, and of a GPU, which nobody else uses, 95 %.
/// Errors: DeviceError for a device that is not there, if it is asked.
int64_t find_budget(const MemorySettings& settings, const std::string& device);

/// The plan as a table for people: parts of the peak, phases, what was chosen.
std::string print_plan(const MemoryPlan& plan, int64_t budget);

}  // namespace draftsmith::memory
