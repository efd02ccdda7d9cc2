// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "draftsmith/eval/draft_source.h"
#include "draftsmith/model/token_tree.h"

namespace draftsmith::eval {

/// What one round commits: the tokens of a path of the tree, and the target's own token after it.
struct Acceptance {
  std::vector<int64_t> path;  // nodes, the root (0) first; the root was committed before
  int64_t token = 0;

  int64_t num_accepted() const { return static_cast<int64_t>(path.size()) - 1; }
};

/// The anchor with the tree below it.
model::TokenTree attach_anchor(const DraftTree& tree, int64_t anchor);

/// Follows the target: from the root, `pick(node)` is the target's token after the node; while a
/// child of the node holds that token, go there. Lossless at any temperature, because a draft
/// survives only as the very token that the target picks. `pick` is asked for nodes of the path
/// alone, in order.
Acceptance accept_matching(
    const model::TokenTree& tree,
    const std::function<int64_t(int64_t)>& pick);

/// For a line of drafts drawn from q = proposal.distributions: accepts draft k with probability
/// min(1, p(draft) / q(draft)), p the target's distribution there; the first rejected one is
/// replaced by a draw from max(p - q, 0), and if none is rejected a token of the target follows.
/// Every token then has the target's distribution. `target(node)` gives p after a node.
/// Source: Leviathan et al. 2023, arXiv 2211.17192.
Acceptance accept_drawn(
    const Proposal& proposal,
    const std::function<std::vector<double>(int64_t)>& target,
    const TokenPicker& picker,
    const Anchor& anchor);

}  // namespace draftsmith::eval
