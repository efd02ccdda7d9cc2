// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/eval/plain_decode.h"

#include <algorithm>
#include <numeric>

#include "draftsmith/base/error.h"

namespace draftsmith::eval {
namespace {

using Ids = std::vector<int64_t>;

/// The next token of every row.
Ids pick_all(
    const torch::Tensor& logits,
    const Ids& rows,
    const std::vector<Ids>& answers,
    const TokenPicker& picker,
    int64_t first_response) {
  if (picker.is_greedy()) return pick_greedy(logits);
  Ids next;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto place = answers[static_cast<size_t>(rows[i])].size();
    next.push_back(picker.pick(
        logits[static_cast<int64_t>(i)], first_response + rows[i], static_cast<int64_t>(place)));
  }
  return next;
}

}  // namespace

torch::Tensor pad_prompts(const std::vector<Ids>& prompts) {
  size_t longest = 0;
  for (const auto& prompt : prompts)
    longest = std::max(longest, prompt.size());
  auto ids = torch::zeros(
      {static_cast<int64_t>(prompts.size()), static_cast<int64_t>(longest)}, torch::kLong);
  for (size_t b = 0; b < prompts.size(); ++b)
    std::copy(
        prompts[b].begin(), prompts[b].end(), ids[static_cast<int64_t>(b)].data_ptr<int64_t>());
  return ids;
}

bool has_ended(const Ids& answer, const DecodeLimits& limits) {
  return static_cast<int64_t>(answer.size()) >= limits.max_new_tokens ||
         std::find_first_of(
             answer.begin(), answer.end(), limits.stop_ids.begin(), limits.stop_ids.end()) !=
             answer.end();
}

std::vector<Ids> decode_plainly(
    const model::Target& target,
    const std::vector<Ids>& prompts,
    const DecodeLimits& limits,
    const TokenPicker& picker,
    int64_t first_response,
    const std::function<void(int64_t)>& on_step) {
  const at::NoGradGuard no_grad;
  DS_CHECK(!prompts.empty() && limits.max_new_tokens >= 1);
  const auto padded = pad_prompts(prompts);
  const auto B = static_cast<int64_t>(prompts.size());
  auto cache = target.make_cache(B, padded.size(1) + limits.max_new_tokens);
  Ids lengths;
  for (const auto& prompt : prompts)
    lengths.push_back(static_cast<int64_t>(prompt.size()));

  auto states = target.forward(padded, {}, cache, lengths).last;
  const auto last_rows = torch::tensor(lengths, torch::kLong) - 1;
  std::vector<Ids> answers(prompts.size());
  Ids rows(prompts.size());  // the prompt that each row of the batch answers
  std::iota(rows.begin(), rows.end(), 0);
  auto next = pick_all(
      target.logits(states.index({torch::arange(B, torch::kLong), last_rows})), rows, answers,
      picker, first_response);
  while (true) {
    int64_t num_added = 0;
    Ids open_rows;
    Ids open_index;
    Ids open_tokens;
    for (size_t i = 0; i < rows.size(); ++i) {
      auto& answer = answers[static_cast<size_t>(rows[i])];
      if (has_ended(answer, limits)) continue;  // carried along, see below
      answer.push_back(next[i]);
      ++num_added;
      if (has_ended(answer, limits)) continue;
      open_rows.push_back(rows[i]);
      open_index.push_back(static_cast<int64_t>(i));
      open_tokens.push_back(next[i]);
    }
    if (on_step) on_step(num_added);
    if (open_rows.empty()) return answers;
    // Rows that have ended are carried along until a quarter of the batch has: cutting them out
    // copies the whole cache.
    if (open_rows.size() * 4 <= rows.size() * 3) {
      cache.select_rows(open_index);
      rows = std::move(open_rows);
    } else {
      open_tokens = next;
    }
    const auto ids = torch::tensor(open_tokens, torch::kLong).unsqueeze(1);
    next = pick_all(
        target.logits(target.forward(ids, {}, cache).last).squeeze(1), rows, answers, picker,
        first_response);
  }
}

double top_gap(const model::Target& target, const std::vector<int64_t>& ids) {
  const at::NoGradGuard no_grad;
  const auto states = target.forward(torch::tensor(ids, torch::kLong).unsqueeze(0), {});
  const auto logits =
      target.logits(states.last.select(1, states.last.size(1) - 1)).to(torch::kFloat);
  const auto best = std::get<0>(logits.topk(2, -1));
  return (best[0][0] - best[0][1]).item<double>();
}

}  // namespace draftsmith::eval
