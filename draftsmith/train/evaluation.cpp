// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/evaluation.h"

#include <exception>

#include "draftsmith/train/agreement.h"
#include "draftsmith/train/step.h"

namespace draftsmith::train {

MetricSums evaluate_held_out(
    const BatchMaker& make_batch,
    const model::Drafter& drafter,
    const torch::Tensor& lm_head,
    data::BatchSource& held_out,
    const LossSettings& loss,
    const model::ForwardPlan& plan,
    int64_t tree_budget,
    const pipeline::Ranks& ranks) {
  const auto rule = drafter.block_rule(loss.block_decay());
  std::vector<MetricSums> sums(1);
  std::exception_ptr failure;
  try {
    for (int64_t i = ranks.rank(); i < held_out.batches_of_epoch(0); i += ranks.size()) {
      const auto batch = make_batch(held_out.read({0, i}, rule, ranks.size()));
      sums[0] += run_micro_step(
                     drafter, lm_head, batch, loss, /*needs_gradients=*/false, plan, tree_budget)
                     .sums;
    }
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  sum_over_ranks(ranks, sums, rule.block_size, failure);
  return sums[0];
}

}  // namespace draftsmith::train
