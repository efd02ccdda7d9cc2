// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/eval/draft_source.h"

#include <algorithm>

#include "draftsmith/base/error.h"
#include "draftsmith/base/stopwatch.h"
#include "draftsmith/ops/linear.h"

namespace draftsmith::eval {

DecodeTimes& DecodeTimes::operator+=(const DecodeTimes& other) {
  prefill += other.prefill;
  draft += other.draft;
  tree += other.tree;
  verify += other.verify;
  commit += other.commit;
  return *this;
}

DrafterSource::DrafterSource(
    const model::Target& target,
    const model::Drafter& drafter,
    DraftOptions options)
    : target_(target),
      drafter_(drafter),
      options_(options),
      lm_head_(target.lm_head().to(drafter.dtype())) {
  DS_CHECK(!options.samples_drafts || options.shape == DraftShape::kChain);
}

int64_t DrafterSource::max_nodes() const {
  return options_.shape == DraftShape::kChain ? max_depth()
                                              : std::max<int64_t>(0, options_.tree_budget);
}

void DrafterSource::start(int64_t num_rows, int64_t capacity) {
  cache_ = drafter_.make_cache(num_rows, capacity);
}

torch::Tensor DrafterSource::draft_logits(const std::vector<Anchor>& anchors) {
  const int64_t K = drafter_.config().block_size;
  const auto B = static_cast<int64_t>(anchors.size());
  auto blocks = torch::full({B, K}, drafter_.config().mask_token_id, torch::kLong);
  for (int64_t b = 0; b < B; ++b)
    blocks[b][0] = anchors[static_cast<size_t>(b)].token;
  const auto states = drafter_.draft(target_.embed(blocks).to(drafter_.dtype()), *cache_);
  return ops::linear(states.narrow(1, 1, K - 1), lm_head_, {});
}

Proposal DrafterSource::draw_chain(const torch::Tensor& logits, const Anchor& anchor) const {
  Proposal proposal;
  std::vector<int64_t> tokens;
  for (int64_t k = 0; k < logits.size(0); ++k) {
    proposal.distributions.push_back(softmax_at(logits[k], options_.picker.temperature()));
    tokens.push_back(draw_index(
        proposal.distributions.back(),
        options_.picker.uniform(Draw::kDraft, anchor.response, anchor.place + 1 + k)));
  }
  proposal.tree = make_line_tree(tokens);
  return proposal;
}

std::vector<Proposal> DrafterSource::propose(
    const torch::Tensor& features,
    const std::vector<int64_t>& num_new,
    const std::vector<Anchor>& anchors,
    DecodeTimes& times) {
  std::vector<Proposal> proposals(anchors.size());
  if (max_depth() == 0 || max_nodes() == 0) return proposals;
  Stopwatch watch;
  drafter_.append_context(*cache_, features.to(drafter_.dtype()), num_new);
  const auto logits = draft_logits(anchors);
  times.draft += watch.restart();

  const int64_t V = logits.size(2);
  if (options_.shape == DraftShape::kTree) {
    const int64_t k = std::min(options_.tree_budget, V);
    const auto top = ops::top_k(logits.flatten(0, 1), k);
    const auto ids = top.ids.view({-1, max_depth(), k});
    const auto log_probs = top.log_probs.view({-1, max_depth(), k});
    for (size_t b = 0; b < anchors.size(); ++b) {
      const auto row = static_cast<int64_t>(b);
      proposals[b].tree = build_draft_tree({ids[row], log_probs[row]}, options_.tree_budget);
    }
  } else if (options_.samples_drafts && !options_.picker.is_greedy()) {
    for (size_t b = 0; b < anchors.size(); ++b)
      proposals[b] = draw_chain(logits[static_cast<int64_t>(b)], anchors[b]);
  } else {
    const auto picks = pick_greedy(logits.flatten(0, 1));
    for (size_t b = 0; b < anchors.size(); ++b) {
      const auto first = picks.begin() + static_cast<std::ptrdiff_t>(b) * max_depth();
      proposals[b].tree = make_line_tree({first, first + max_depth()});
    }
  }
  times.tree += watch.seconds();
  return proposals;
}

}  // namespace draftsmith::eval
