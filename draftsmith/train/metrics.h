// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "draftsmith/data/draft_blocks.h"
#include "draftsmith/ops/lm_head_loss.h"
#include "draftsmith/train/expected_tokens.h"

namespace draftsmith::train {

/// Seconds spent in the parts of training. On a GPU a part ends where the host waits for it anyway:
/// of several micro-steps, a forward's time holds the rest of the backward before it.
struct StepTimes {
  double data = 0;      // reading, making blocks
  double target = 0;    // the target's forward
  double forward = 0;   // the drafter's forward
  double head = 0;      // lm_head and loss, with the gradient of the hidden states
  double backward = 0;  // the rest of the gradient
  double exchange = 0;  // until all ranks' gradients are summed, what the slower ones take included
  double optimizer = 0;

  StepTimes& operator+=(const StepTimes& other);
};

/// What is reported of some micro-steps, as sums, so that micro-steps and ranks combine with
/// `+=`; ratios are formed when they are shown.
struct MetricSums {
  double loss_sum = 0;  // weighted, all terms
  double ce_sum = 0;    // weighted, as are kl and cap
  double kl_sum = 0;
  double cap_sum = 0;
  double weight_sum = 0;
  int64_t blocks = 0;            // with a label
  int64_t all_blocks = 0;        // and those that only fill the batch's shape
  int64_t accepted_sum = 0;      // supervised slots before a block's first wrong one
  std::vector<int64_t> correct;  // [K] supervised slots predicted correctly
  std::vector<int64_t> count;    // [K] supervised slots
  int64_t tokens = 0;            // of the context, padding not counted
  ExpectedTokens expected;       // trees of the micro-steps that were asked for them
  StepTimes times;

  MetricSums& operator+=(const MetricSums& other);

  double loss() const { return ratio(loss_sum, weight_sum); }
  double ce() const { return ratio(ce_sum, weight_sum); }
  double kl() const { return ratio(kl_sum, weight_sum); }
  double cap() const { return ratio(cap_sum, weight_sum); }
  /// Share of supervised slots whose argmax is the label.
  double accuracy() const;
  std::vector<double> accuracy_by_slot() const;  // slots 1 .. K-1
  /// Mean over blocks with a label of the accepted prefix + 1, the target's own token.
  double expected_acceptance() const {
    return blocks == 0 ? 0
                       : 1 + ratio(static_cast<double>(accepted_sum), static_cast<double>(blocks));
  }

  /// Share of the blocks that have no label.
  double empty_blocks() const {
    return ratio(static_cast<double>(all_blocks - blocks), static_cast<double>(all_blocks));
  }

  /// Means over blocks of the drafts that the drafter itself expects to be accepted.
  double chain_expected_tokens() const {
    return ratio(expected.chain_sum, static_cast<double>(blocks));
  }
  double tree_expected_tokens() const { return per_tree(expected.tree_sum); }
  /// Expected acceptance with draft trees in place of the best guess per slot.
  double tree_expected_acceptance() const {
    return expected.tree_blocks == 0
               ? 0
               : 1 + per_tree(static_cast<double>(expected.tree_accepted_sum));
  }

 private:
  double per_tree(double sum) const {
    return ratio(sum, static_cast<double>(expected.tree_blocks));
  }
  static double ratio(double numerator, double denominator) {
    return denominator == 0 ? 0 : numerator / denominator;
  }
};

MetricSums
sum_metrics(const ops::LossTerms& terms, const data::DraftBlocks& blocks, int64_t tokens);

}  // namespace draftsmith::train
