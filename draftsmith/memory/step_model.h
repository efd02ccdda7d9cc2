// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "draftsmith/formats/hf_config.h"
#include "draftsmith/memory/ledger.h"
#include "draftsmith/ops/block_attention.h"
#include "draftsmith/ops/lm_head_loss.h"

namespace draftsmith::memory {

/// What decides the bytes of a training step.
struct StepShape {
  formats::DrafterConfig drafter;
  formats::TargetConfig target;
  int64_t element_bytes = 2;         // of the drafter's weights and activations
  int64_t target_element_bytes = 2;  // of the target's
  int64_t context_tokens = 0;        // T: rows x longest row of the largest batch
  int64_t blocks = 0;                // kept draft blocks
  int64_t chunk_rows = 0;            // of logits, the teacher's included
  int64_t threads = 1;               // of this process
  bool has_teacher = true;           // KL: the target's final states are needed
  bool recomputes_layers = false;
  ops::AttentionMethod attention = ops::AttentionMethod::kBlock;  // that runs on this device
  ops::LossMethod loss = ops::LossMethod::kFused;
  bool has_stored_features = false;  // the target's layers neither run nor are loaded
  int64_t unpacked_tokens = 0;       // of the longest sequence, where such features are quantised
  bool has_target_copy = false;      // the target's weights are converted or on a GPU, not mapped
  bool shares_target = true;         // its forwards and its head are in the drafter's memory
  bool is_on_gpu = false;            // the drafter is: its kernels keep other things
  bool splits_masters = false;       // masters are the weights and 16 bits
  int64_t product_scratch = 0;       // of this machine: see measure_product_scratch
  int64_t product_kernel = 0;        // of this machine: see measure_product_kernel
  int64_t tree_budget = 0;           // nodes of the trees that logged steps count
  // Of a pipeline, where it uses the same memory:
  int64_t waiting_batches = 0;  // made by the target, not yet taken by the drafter
  int64_t target_workers = 0;   // forwards of the target beside the drafter's step; 0 = in turn
  // Of several drafters:
  int64_t drafters = 1;          // that share this memory, each with all of the above
  int64_t optimizer_shards = 1;  // ranks that masters and moments are divided among

  /// Of a parameter's master, beside its weight.
  int64_t master_bytes() const { return element_bytes == 4 ? 0 : splits_masters ? 2 : 4; }
  int64_t rows() const { return blocks * drafter.block_size; }
  /// Rows of the head: at most K - 1 of K slots have a label.
  int64_t supervised_rows() const { return blocks * (drafter.block_size - 1); }
};

int64_t count_drafter_parameters(const formats::DrafterConfig& config);
int64_t count_target_parameters(const formats::TargetConfig& config);

/// Those that a run loads: all, or those of embedding and head.
int64_t count_loaded_parameters(const StepShape& shape);

/// The parts of a run that stay: weights, float32 masters, gradients and moments.
void add_state(Ledger& ledger, const StepShape& shape);

/// The target's forward over a batch: leaves the features, teacher states and embedded blocks.
void add_target_forward(Ledger& ledger, const StepShape& shape);

/// A forward of the drafter without gradients, and the head, over such a batch.
void add_evaluation(Ledger& ledger, const StepShape& shape);

/// The state and the steps of the further drafters in the same memory.
void add_other_drafters(Ledger& ledger, const StepShape& shape);

/// Batches that wait, and the target's forwards over further ones, while a drafter is at its step.
void add_batches_ahead(Ledger& ledger, const StepShape& shape);

/// Forward, head and backward of the drafter over such a batch, to the last gradient added to the
/// sums; then everything of the batch is dropped.
void add_drafter_step(Ledger& ledger, const StepShape& shape);

/// Its parts, which follow each other.
void add_drafter_forward(Ledger& ledger, const StepShape& shape);
void add_head(Ledger& ledger, const StepShape& shape);
void add_drafter_backward(Ledger& ledger, const StepShape& shape);

/// Floating-point operations of forward and backward of the drafter, attention not counted.
double count_step_flops(const StepShape& shape);

/// The same of the target's forward, which needs no logits.
double count_target_flops(const StepShape& shape);

}  // namespace draftsmith::memory
