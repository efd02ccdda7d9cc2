// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "draftsmith/data/draft_blocks.h"
#include "draftsmith/ops/lm_head_loss.h"

namespace draftsmith::train {

/// What a round of decoding would give by the drafter's own probabilities, summed over blocks with
/// a label. Unsupervised slots neither break a prefix nor count.
struct ExpectedTokens {
  double chain_sum = 0;           // sums over slots of q(label) up to the slot
  double tree_sum = 0;            // sums over the nodes of the draft tree of their prefix's q
  int64_t tree_accepted_sum = 0;  // nodes on the way of the labels through the tree
  int64_t tree_blocks = 0;        // whose trees were built

  ExpectedTokens& operator+=(const ExpectedTokens& other);
};

/// `terms` holds the best ids of each row (LossOptions::top_k); a tree's depths are the supervised
/// slots of a block. Without a budget only chains are counted. No product is computed again: all
/// is in the terms. Cost: one tree a block, on all threads.
ExpectedTokens sum_expected_tokens(
    const ops::LossTerms& terms,
    const data::DraftBlocks& blocks,
    int64_t tree_budget);  // nodes without the root

}  // namespace draftsmith::train
