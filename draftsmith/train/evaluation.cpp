// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/evaluation.h"

#include "draftsmith/pipeline/train_batch.h"
#include "draftsmith/train/step.h"

namespace draftsmith::train {

MetricSums evaluate_held_out(
    const model::Target& target,
    const model::Drafter& drafter,
    const torch::Tensor& lm_head,
    data::BatchSource& held_out,
    const LossSettings& loss,
    int64_t tree_budget) {
  const auto rule = drafter.block_rule(loss.block_decay());
  MetricSums sums;
  for (int64_t i = 0; i < held_out.batches_of_epoch(0); ++i) {
    const auto batch = pipeline::make_train_batch(
        target, held_out.read({0, i}, rule), drafter.config().target_layer_ids, drafter.dtype());
    sums += run_micro_step(
                drafter, lm_head, batch, loss, /*needs_gradients=*/false, /*plan=*/{}, tree_budget)
                .sums;
  }
  return sums;
}

}  // namespace draftsmith::train
