// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/eval/speculative_decode.h"

#include <algorithm>
#include <numeric>

#include "draftsmith/base/error.h"
#include "draftsmith/base/stopwatch.h"

namespace draftsmith::eval {
namespace {

using Ids = std::vector<int64_t>;

torch::Tensor as_row(const Ids& ids) { return torch::tensor(ids, torch::kLong).unsqueeze(0); }

bool has_stop(const Ids& tokens, const DecodeLimits& limits) {
  return std::find_first_of(
             tokens.begin(), tokens.end(), limits.stop_ids.begin(), limits.stop_ids.end()) !=
         tokens.end();
}

/// Cuts after the first stop id and at the limit.
void cut_answer(Ids& tokens, const DecodeLimits& limits) {
  const auto stop = std::find_first_of(
      tokens.begin(), tokens.end(), limits.stop_ids.begin(), limits.stop_ids.end());
  if (stop != tokens.end()) tokens.erase(stop + 1, tokens.end());
  if (static_cast<int64_t>(tokens.size()) > limits.max_new_tokens)
    tokens.resize(static_cast<size_t>(limits.max_new_tokens));
}

/// The drafter's guesses for the K - 1 tokens after `anchor`, whose position is the length of
/// the cached context.
Ids draft_block(
    const model::Target& target,
    const model::Drafter& drafter,
    const model::KvCache& cache,
    int64_t anchor) {
  const int64_t K = drafter.config().block_size;
  Ids block(static_cast<size_t>(K), drafter.config().mask_token_id);
  block[0] = anchor;
  const auto embedded = target.embed(as_row(block)).to(drafter.dtype());
  const auto states = drafter.draft(embedded, cache).select(0, 0).narrow(0, 1, K - 1);
  return pick_greedy(target.logits(states.to(target.dtype())));
}

}  // namespace

SpeculativeAnswer decode_chain(
    const model::Target& target,
    const model::Drafter& drafter,
    const Ids& prompt,
    const DecodeLimits& limits,
    bool runs_raw_rounds) {
  const at::NoGradGuard no_grad;
  DS_CHECK(!prompt.empty() && limits.max_new_tokens >= 1);
  const auto& layer_ids = drafter.config().target_layer_ids;
  const auto prompt_length = static_cast<int64_t>(prompt.size());
  const int64_t capacity = prompt_length + limits.max_new_tokens + drafter.config().block_size;
  auto target_cache = target.make_cache(1, capacity);
  auto drafter_cache = drafter.make_cache(capacity);

  SpeculativeAnswer answer;
  Stopwatch watch;
  auto states = target.forward(as_row(prompt), layer_ids, target_cache);
  answer.tokens = pick_greedy(target.logits(states.last.select(1, prompt_length - 1)));
  auto features = states.features;  // of committed positions that the drafter has not seen
  answer.times.prefill = watch.restart();

  const int64_t limit = limits.max_new_tokens - (runs_raw_rounds ? 0 : 1);
  int64_t num_committed = 0;  // answer.tokens[num_committed] is the anchor
  while (num_committed < limit && !has_stop(answer.tokens, limits)) {
    drafter.append_context(drafter_cache, features.to(drafter.dtype()));
    const int64_t anchor = answer.tokens.back();
    Ids block = draft_block(target, drafter, drafter_cache, anchor);
    answer.times.draft += watch.restart();

    block.insert(block.begin(), anchor);
    states = target.verify({model::make_line(block)}, layer_ids, target_cache);
    const Ids picks = pick_greedy(target.logits(states.last.select(0, 0)));
    int64_t accepted = 0;
    while (accepted + 1 < static_cast<int64_t>(block.size()) &&
           block[static_cast<size_t>(accepted + 1)] == picks[static_cast<size_t>(accepted)])
      ++accepted;
    // Accepted drafts equal the target's picks, so the commit is a prefix of the picks.
    const Ids commit(picks.begin(), picks.begin() + accepted + 1);
    answer.tokens.insert(answer.tokens.end(), commit.begin(), commit.end());
    answer.rounds.push_back(commit);
    features = states.features.narrow(1, 0, accepted + 1);
    num_committed += accepted + 1;
    Ids path(static_cast<size_t>(accepted + 1));
    std::iota(path.begin(), path.end(), 0);
    target_cache.commit({path});
    answer.times.verify += watch.restart();
  }
  cut_answer(answer.tokens, limits);
  return answer;
}

}  // namespace draftsmith::eval
