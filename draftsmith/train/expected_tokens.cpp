// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/expected_tokens.h"

#include <vector>

#include <ATen/Parallel.h>

#include "draftsmith/eval/accept_drafts.h"
#include "draftsmith/eval/draft_tree.h"

namespace draftsmith::train {
namespace {

/// Drafts that are accepted when the target says `labels`.
int64_t count_accepted(const eval::DraftTree& tree, const std::vector<int64_t>& labels) {
  size_t next = 0;
  const auto accepted = eval::accept_matching(eval::attach_anchor(tree, 0), [&](int64_t) {
    return next < labels.size() ? labels[next++] : int64_t{-1};
  });
  return accepted.num_accepted();
}

/// Sum over slots with a label of the labels' probabilities up to the slot.
double sum_chains(const ops::LossTerms& terms, const data::DraftBlocks& blocks) {
  const auto is_free = (blocks.weights > 0).logical_not();  // [B, N, K]
  const auto label_probability =
      terms.label_probability.cpu().view(is_free.sizes()).to(torch::kDouble);
  const auto prefix = label_probability.masked_fill(is_free, 1).cumprod(-1);
  return prefix.masked_fill(is_free, 0).sum().item<double>();
}

ExpectedTokens
sum_trees(const ops::LossTerms& terms, const data::DraftBlocks& blocks, int64_t tree_budget) {
  const int64_t K = blocks.weights.size(2);
  const auto is_supervised = (blocks.weights > 0).contiguous();
  const auto labels = blocks.labels.contiguous();
  const auto ids = terms.top_ids.cpu().contiguous();
  const auto log_probs = terms.top_log_probs.to(torch::kCPU, torch::kFloat).contiguous();
  const int64_t num_blocks = blocks.weights.numel() / K;
  std::vector<ExpectedTokens> parts(static_cast<size_t>(num_blocks));
  at::parallel_for(0, num_blocks, 16, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_grad_in_thread;
    for (int64_t n = begin; n < end; ++n) {
      std::vector<int64_t> rows;
      std::vector<int64_t> wanted;
      for (int64_t row = n * K; row < (n + 1) * K; ++row) {
        if (!is_supervised.const_data_ptr<bool>()[row]) continue;
        rows.push_back(row);
        wanted.push_back(labels.const_data_ptr<int64_t>()[row]);
      }
      if (rows.empty()) continue;
      const auto index = torch::tensor(rows, torch::kLong);
      const auto tree = eval::build_draft_tree(
          {ids.index_select(0, index), log_probs.index_select(0, index)}, tree_budget);
      auto& part = parts[static_cast<size_t>(n)];
      part.tree_sum = tree.expected_accepted();
      part.tree_accepted_sum = count_accepted(tree, wanted);
      part.tree_blocks = 1;
    }
  });
  ExpectedTokens sum;
  for (const auto& part : parts)
    sum += part;
  return sum;
}

}  // namespace

ExpectedTokens& ExpectedTokens::operator+=(const ExpectedTokens& other) {
  chain_sum += other.chain_sum;
  tree_sum += other.tree_sum;
  tree_accepted_sum += other.tree_accepted_sum;
  tree_blocks += other.tree_blocks;
  return *this;
}

ExpectedTokens sum_expected_tokens(
    const ops::LossTerms& terms,
    const data::DraftBlocks& blocks,
    int64_t tree_budget) {
  const at::NoGradGuard no_grad;
  auto sums = tree_budget > 0 ? sum_trees(terms, blocks, tree_budget) : ExpectedTokens{};
  sums.chain_sum = sum_chains(terms, blocks);
  return sums;
}

}  // namespace draftsmith::train
