// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/eval/speculative_decode.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "draftsmith/base/error.h"
#include "draftsmith/base/stopwatch.h"
#include "draftsmith/ops/linear.h"

namespace draftsmith::eval {
namespace {

using Ids = std::vector<int64_t>;

/// Cuts after the first stop id and at the limit.
void cut_answer(Ids& tokens, const DecodeLimits& limits) {
  const auto stop = std::find_first_of(
      tokens.begin(), tokens.end(), limits.stop_ids.begin(), limits.stop_ids.end());
  if (stop != tokens.end()) tokens.erase(stop + 1, tokens.end());
  if (static_cast<int64_t>(tokens.size()) > limits.max_new_tokens)
    tokens.resize(static_cast<size_t>(limits.max_new_tokens));
}

int64_t longest(const std::vector<Ids>& lists) {
  size_t size = 0;
  for (const Ids& list : lists)
    size = std::max(size, list.size());
  return static_cast<int64_t>(size);
}

class Decoding {
 public:
  Decoding(
      const model::Target& target,
      DraftSource& source,
      const std::vector<Ids>& prompts,
      const DecodeLimits& limits,
      const SpeculationOptions& options)
      : target_(target),
        source_(source),
        prompts_(prompts),
        limits_(limits),
        options_(options),
        rows_(prompts.size()),
        cache_(target.make_cache(static_cast<int64_t>(prompts.size()), capacity())) {
    std::iota(rows_.begin(), rows_.end(), int64_t{0});
    source_.start(static_cast<int64_t>(prompts.size()), capacity());
    result_.answers.resize(prompts.size());
  }

  SpeculativeResult run() {
    prefill();
    while (drop_ended_rows())
      run_round();
    for (auto& answer : result_.answers)
      cut_answer(answer.tokens, limits_);
    return std::move(result_);
  }

 private:
  /// The last round may begin just before the limit; the tree stands beyond what it commits.
  int64_t capacity() const {
    return longest(prompts_) + limits_.max_new_tokens + source_.max_depth() + 1 +
           source_.max_nodes() + 1;
  }

  SpeculativeAnswer& answer_of(size_t row) {
    return result_.answers[static_cast<size_t>(rows_[row])];
  }

  int64_t pick(const torch::Tensor& logits, size_t row, int64_t place) const {
    return options_.picker.pick(logits, options_.first_response + rows_[row], place);
  }

  void prefill() {
    Stopwatch watch;
    for (const Ids& prompt : prompts_)
      num_new_.push_back(static_cast<int64_t>(prompt.size()));
    const auto states =
        target_.forward(pad_prompts(prompts_), source_.layer_ids(), cache_, num_new_);
    const auto rows = torch::arange(static_cast<int64_t>(prompts_.size()), torch::kLong);
    const auto logits =
        target_.logits(states.last.index({rows, torch::tensor(num_new_, torch::kLong) - 1}));
    for (size_t i = 0; i < rows_.size(); ++i)
      answer_of(i).tokens.push_back(pick(logits[static_cast<int64_t>(i)], i, 0));
    features_ = states.features;
    result_.times.prefill += watch.seconds();
  }

  /// Whether a row is left.
  bool drop_ended_rows() {
    DecodeLimits limits = limits_;
    if (options_.runs_raw_rounds) ++limits.max_new_tokens;
    Ids open;
    for (size_t i = 0; i < rows_.size(); ++i)
      if (!has_ended(answer_of(i).tokens, limits)) open.push_back(static_cast<int64_t>(i));
    if (open.size() == rows_.size() || open.empty()) return !open.empty();
    cache_.select_rows(open);
    source_.select_rows(open);
    features_ = features_.index_select(0, torch::tensor(open, torch::kLong));
    const auto keep = [&](Ids& values) {
      for (size_t i = 0; i < open.size(); ++i)
        values[i] = values[static_cast<size_t>(open[i])];
      values.resize(open.size());
    };
    keep(rows_);
    keep(num_new_);
    return true;
  }

  void run_round() {
    std::vector<Anchor> anchors;
    for (size_t i = 0; i < rows_.size(); ++i) {
      const Ids& tokens = answer_of(i).tokens;
      anchors.push_back(
          {tokens.back(), options_.first_response + rows_[i],
           static_cast<int64_t>(tokens.size()) - 1});
    }
    const auto proposals = source_.propose(features_, num_new_, anchors, result_.times);

    Stopwatch watch;
    std::vector<model::TokenTree> trees;
    for (size_t i = 0; i < rows_.size(); ++i)
      trees.push_back(attach_anchor(proposals[i].tree, anchors[i].token));
    const auto [states, logits] = verify(trees);
    result_.times.verify += watch.restart();

    std::vector<Ids> paths;
    for (size_t i = 0; i < rows_.size(); ++i) {
      const auto accepted =
          accept(logits[static_cast<int64_t>(i)], proposals[i], trees[i], anchors[i]);
      commit_tokens(i, trees[i], accepted);
      if (options_.on_round) options_.on_round({anchors[i], proposals[i].tree, accepted});
      paths.push_back(accepted.path);
    }
    cache_.commit(paths);
    take_features(states.features, paths);
    result_.times.commit += watch.seconds();
  }

  /// States and logits of all nodes, in float32 with the bits of decoding each node's path token by
  /// token.
  std::pair<model::TargetStates, torch::Tensor> verify(const std::vector<model::TokenTree>& trees) {
    const ops::SameBitsForAnyRows same_bits;
    auto states = target_.verify(trees, source_.layer_ids(), cache_);
    auto logits = target_.logits(states.last);
    return {std::move(states), std::move(logits)};
  }

  Acceptance accept(
      const torch::Tensor& logits,  // [n, V]
      const Proposal& proposal,
      const model::TokenTree& tree,
      const Anchor& anchor) const {
    if (!proposal.distributions.empty()) {
      const auto target = [&](int64_t node) {
        return softmax_at(logits[node], options_.picker.temperature());
      };
      return accept_drawn(proposal, target, options_.picker, anchor);
    }
    int64_t place = anchor.place;  // the path descends by one token a time
    return accept_matching(tree, [&](int64_t node) {
      return options_.picker.pick(logits[node], anchor.response, ++place);
    });
  }

  void commit_tokens(size_t row, const model::TokenTree& tree, const Acceptance& accepted) {
    Ids round;
    for (size_t i = 1; i < accepted.path.size(); ++i)
      round.push_back(tree.ids[static_cast<size_t>(accepted.path[i])]);
    round.push_back(accepted.token);
    auto& answer = answer_of(row);
    answer.tokens.insert(answer.tokens.end(), round.begin(), round.end());
    answer.rounds.push_back(std::move(round));
  }

  /// Keeps the states of the committed nodes, in the order of their positions.
  void take_features(const torch::Tensor& features, const std::vector<Ids>& paths) {
    const int64_t width = longest(paths);
    std::vector<torch::Tensor> rows;
    num_new_.clear();
    for (size_t i = 0; i < paths.size(); ++i) {
      Ids path = paths[i];
      num_new_.push_back(static_cast<int64_t>(path.size()));
      path.resize(static_cast<size_t>(width), 0);
      rows.push_back(
          features[static_cast<int64_t>(i)].index_select(0, torch::tensor(path, torch::kLong)));
    }
    features_ = torch::stack(rows);
  }

  const model::Target& target_;
  DraftSource& source_;
  const std::vector<Ids>& prompts_;
  const DecodeLimits& limits_;
  const SpeculationOptions& options_;
  Ids rows_;  // the prompt that each row of the batch answers
  model::TargetCache cache_;
  torch::Tensor features_;  // [B, T, F] of committed tokens that the source has not seen
  Ids num_new_;             // [B] how many of the T are real
  SpeculativeResult result_;
};

}  // namespace

SpeculativeResult decode_speculatively(
    const model::Target& target,
    DraftSource& source,
    const std::vector<Ids>& prompts,
    const DecodeLimits& limits,
    const SpeculationOptions& options) {
  const at::NoGradGuard no_grad;
  DS_CHECK(!prompts.empty() && limits.max_new_tokens >= 1);
  return Decoding(target, source, prompts, limits, options).run();
}

}  // namespace draftsmith::eval
