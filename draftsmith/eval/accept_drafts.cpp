// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/eval/accept_drafts.h"

#include <algorithm>
#include <numeric>

#include "draftsmith/base/error.h"

namespace draftsmith::eval {
namespace {

/// The child of `node` that holds `token`, or 0. A token alone does not name a child: cousins may
/// hold the same one.
int64_t find_child(const model::TokenTree& tree, int64_t node, int64_t token) {
  for (int64_t i = node + 1; i < tree.size(); ++i) {
    const auto index = static_cast<size_t>(i);
    if (tree.parents[index] == node && tree.ids[index] == token) return i;
  }
  return 0;
}

/// max(p - q, 0), or p if nothing of it is left.
std::vector<double> subtract(const std::vector<double>& p, const std::vector<double>& q) {
  std::vector<double> rest(p.size());
  for (size_t i = 0; i < p.size(); ++i)
    rest[i] = std::max(p[i] - q[i], 0.0);
  return std::accumulate(rest.begin(), rest.end(), 0.0) > 0 ? rest : p;
}

}  // namespace

model::TokenTree attach_anchor(const DraftTree& tree, int64_t anchor) {
  model::TokenTree tokens{{anchor}, {-1}};
  tokens.ids.insert(tokens.ids.end(), tree.tokens.begin(), tree.tokens.end());
  tokens.parents.insert(tokens.parents.end(), tree.parents.begin(), tree.parents.end());
  return tokens;
}

Acceptance accept_matching(
    const model::TokenTree& tree,
    const std::function<int64_t(int64_t)>& pick) {
  Acceptance accepted{{0}, pick(0)};
  while (const int64_t child = find_child(tree, accepted.path.back(), accepted.token)) {
    accepted.path.push_back(child);
    accepted.token = pick(child);
  }
  return accepted;
}

Acceptance accept_drawn(
    const Proposal& proposal,
    const std::function<std::vector<double>(int64_t)>& target,
    const TokenPicker& picker,
    const Anchor& anchor) {
  const auto& drafts = proposal.tree.tokens;
  DS_CHECK(proposal.distributions.size() == drafts.size());
  Acceptance accepted{{0}, 0};
  for (size_t k = 0; k < drafts.size(); ++k) {
    const auto draft = static_cast<size_t>(drafts[k]);
    const auto& q = proposal.distributions[k];
    const auto p = target(static_cast<int64_t>(k));
    const int64_t place = anchor.place + 1 + static_cast<int64_t>(k);
    if (picker.uniform(Draw::kTest, anchor.response, place) * q[draft] < p[draft]) {
      accepted.path.push_back(static_cast<int64_t>(k) + 1);
      continue;
    }
    accepted.token =
        draw_index(subtract(p, q), picker.uniform(Draw::kResidual, anchor.response, place));
    return accepted;
  }
  const auto last = static_cast<int64_t>(drafts.size());
  accepted.token = draw_index(
      target(last), picker.uniform(Draw::kTarget, anchor.response, anchor.place + 1 + last));
  return accepted;
}

}  // namespace draftsmith::eval
