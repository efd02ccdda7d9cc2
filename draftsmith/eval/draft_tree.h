// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "draftsmith/ops/top_k.h"

namespace draftsmith::eval {

/// Drafted tokens after an anchor. Node i = 1, 2, ... is entry i - 1; the anchor is node 0, the
/// root. Parents come before their children, siblings have different tokens.
struct DraftTree {
  std::vector<int64_t> tokens;
  std::vector<int64_t> depths;         // 1 .. K-1
  std::vector<int64_t> parents;        // 0 = the root
  std::vector<double> log_probs = {};  // of the path from the root, by the drafter's marginals

  int64_t num_nodes() const { return static_cast<int64_t>(tokens.size()); }

  /// The nodes' probabilities added up: how many drafts the drafter expects to be accepted.
  double expected_accepted() const;
};

/// The `budget` most probable prefixes of the drafter's guesses, the most probable first. A prefix
/// is a rank in each of the rows 0 .. depth - 1, its probability the product of theirs; on ties the
/// ranks decide, in lexicographic order. That is the tree of this size with the largest expected
/// number of accepted drafts, as long as the rows' marginals are right.
///
/// `guesses` holds at least min(budget, V) ids per row; a budget <= 0 gives the root alone.
/// Cost: O(budget log budget). Source: DDTree, arXiv 2604.12989.
DraftTree build_draft_tree(
    const ops::TopK& guesses,  // rows 0 .. K-2 for depths 1 .. K-1
    int64_t budget);           // nodes without the root

/// The same from logits: top-k and log-probabilities of the rows first.
DraftTree build_draft_tree(
    const torch::Tensor& logits,  // [K-1, V] bf16|fp32
    int64_t budget);

/// One node per depth, each the child of the one before: what chain decoding verifies.
DraftTree make_line_tree(const std::vector<int64_t>& tokens);

}  // namespace draftsmith::eval
