// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/eval/draft_tree.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <queue>

namespace draftsmith::eval {
namespace {

/// A prefix that may become the next node.
struct Candidate {
  double log_prob;
  int64_t parent;
  int64_t depth;
  int64_t rank;  // of its last token
};

class TreeBuilder {
 public:
  TreeBuilder(const ops::TopK& guesses, int64_t budget)
      : depth_(guesses.ids.size(0)),
        width_(guesses.ids.size(1)),
        budget_(budget),
        ids_(guesses.ids.contiguous()),
        log_probs_(guesses.log_probs.contiguous()) {}

  DraftTree build() {
    if (depth_ > 0 && budget_ > 0) push({log_prob(1, 0), 0, 1, 0});
    while (tree_.num_nodes() < budget_ && !heap_.empty()) {
      const Candidate best = heap_.top();
      heap_.pop();
      tree_.tokens.push_back(ids_.const_data_ptr<int64_t>()[(best.depth - 1) * width_ + best.rank]);
      tree_.depths.push_back(best.depth);
      tree_.parents.push_back(best.parent);
      tree_.log_probs.push_back(best.log_prob);
      ranks_.push_back(best.rank);
      // Every prefix is generated once: as the next sibling of one, or as the first child of one.
      if (best.rank + 1 < width_)
        push(
            {best.log_prob - log_prob(best.depth, best.rank) + log_prob(best.depth, best.rank + 1),
             best.parent, best.depth, best.rank + 1});
      if (best.depth < depth_)
        push({best.log_prob + log_prob(best.depth + 1, 0), tree_.num_nodes(), best.depth + 1, 0});
    }
    return std::move(tree_);
  }

 private:
  /// Prefixes that the drafter excludes, or that are no numbers, become no nodes.
  void push(const Candidate& candidate) {
    if (candidate.log_prob > -std::numeric_limits<double>::infinity()) heap_.push(candidate);
  }

  double log_prob(int64_t depth, int64_t rank) const {
    return static_cast<double>(log_probs_.const_data_ptr<float>()[(depth - 1) * width_ + rank]);
  }

  std::vector<int64_t> rank_path(const Candidate& candidate) const {
    std::vector<int64_t> path = {candidate.rank};
    for (int64_t node = candidate.parent; node != 0;
         node = tree_.parents[static_cast<size_t>(node - 1)])
      path.push_back(ranks_[static_cast<size_t>(node - 1)]);
    std::reverse(path.begin(), path.end());
    return path;
  }

  bool comes_later(const Candidate& left, const Candidate& right) const {
    if (left.log_prob != right.log_prob) return left.log_prob < right.log_prob;
    return rank_path(left) > rank_path(right);
  }

  int64_t depth_;
  int64_t width_;
  int64_t budget_;
  torch::Tensor ids_;        // [depth, width]
  torch::Tensor log_probs_;  // [depth, width]
  DraftTree tree_;
  std::vector<int64_t> ranks_;  // of the tree's nodes
  using Later = std::function<bool(const Candidate&, const Candidate&)>;
  std::priority_queue<Candidate, std::vector<Candidate>, Later> heap_{
      [this](const Candidate& left, const Candidate& right) { return comes_later(left, right); }};
};

}  // namespace

double DraftTree::expected_accepted() const {
  double sum = 0;
  for (const double log_prob : log_probs)
    sum += std::exp(log_prob);
  return sum;
}

DraftTree build_draft_tree(const ops::TopK& guesses, int64_t budget) {
  return TreeBuilder(guesses, budget).build();
}

DraftTree build_draft_tree(const torch::Tensor& logits, int64_t budget) {
  if (budget <= 0 || logits.size(0) == 0) return {};
  return build_draft_tree(ops::top_k(logits, std::min(budget, logits.size(1))), budget);
}

DraftTree make_line_tree(const std::vector<int64_t>& tokens) {
  DraftTree tree{tokens, {}, {}};
  for (int64_t i = 0; i < tree.num_nodes(); ++i) {
    tree.depths.push_back(i + 1);
    tree.parents.push_back(i);
  }
  return tree;
}

}  // namespace draftsmith::eval
