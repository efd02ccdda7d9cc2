// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/evaluation.h"

#include <exception>

#include "draftsmith/train/agreement.h"
#include "draftsmith/train/step.h"

namespace draftsmith::train {

std::optional<MetricSums> evaluate_held_out(
    const BatchMaker& make_batch,
    const model::Drafter& drafter,
    const torch::Tensor& lm_head,
    data::BatchSource& held_out,
    const LossSettings& loss,
    const EvaluationOptions& options,
    const pipeline::Ranks& ranks) {
  const auto rule = drafter.block_rule(loss.block_decay());
  std::vector<MetricSums> sums(1);
  std::exception_ptr failure;
  bool is_stopped = false;
  try {
    for (int64_t i = ranks.rank(); i < held_out.batches_of_epoch(0); i += ranks.size()) {
      is_stopped = options.should_stop && options.should_stop();
      if (is_stopped) break;
      const auto batch = make_batch(held_out.read({0, i}, rule, ranks.size()));
      sums[0] += run_micro_step(
                     drafter, lm_head, batch, loss, /*needs_gradients=*/false, options.plan,
                     options.tree_budget)
                     .sums;
    }
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  sum_over_ranks(ranks, sums, rule.block_size, failure);
  if (ranks.any(is_stopped)) return std::nullopt;
  return sums[0];
}

}  // namespace draftsmith::train
