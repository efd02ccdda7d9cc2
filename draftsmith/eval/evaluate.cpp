// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/eval/evaluate.h"

#include <fmt/format.h>

#include <algorithm>

#include "draftsmith/base/progress.h"
#include "draftsmith/base/stopwatch.h"

namespace draftsmith::eval {
namespace {

/// The first position where the answers differ, as a Difference of this prompt; nothing if equal.
std::vector<Difference> compare_answers(
    const model::Target& target,
    int64_t number,
    const std::vector<int64_t>& prompt,
    const std::vector<int64_t>& plain,
    const std::vector<int64_t>& speculative) {
  if (plain == speculative) return {};
  const auto first =
      std::mismatch(plain.begin(), plain.end(), speculative.begin(), speculative.end());
  std::vector<int64_t> ids = prompt;
  ids.insert(ids.end(), plain.begin(), first.first);
  return {{number, first.first - plain.begin(), top_gap(target, ids)}};
}

}  // namespace

EvalReport evaluate_chain(
    const model::Target& target,
    const model::Drafter& drafter,
    const std::vector<data::Prompt>& prompts,
    const DecodeLimits& limits) {
  EvalReport report;
  std::vector<std::vector<Round>> responses;
  std::map<std::string, std::vector<std::vector<Round>>> sets;
  double plain_seconds = 0;
  double speculative_seconds = 0;
  Progress progress("evaluating", static_cast<int64_t>(prompts.size()), "prompts");
  for (const auto& prompt : prompts) {
    const auto number = static_cast<int64_t>(responses.size());
    Stopwatch watch;
    const auto plain = decode_greedily(target, {prompt.ids}, limits).front();
    plain_seconds += watch.restart();
    const auto answer = decode_chain(target, drafter, prompt.ids, limits);
    speculative_seconds += watch.seconds();

    for (const auto& item : compare_answers(target, number, prompt.ids, plain, answer.tokens))
      report.differences.push_back(item);
    report.tokens += static_cast<int64_t>(answer.tokens.size());
    report.times.prefill += answer.times.prefill;
    report.times.draft += answer.times.draft;
    report.times.verify += answer.times.verify;
    responses.push_back(count_emitted(answer.rounds, limits.max_new_tokens - 1, limits.stop_ids));
    sets[prompt.set].push_back(responses.back());
    progress.update(number + 1);
  }
  progress.finish();
  const int64_t K = drafter.config().block_size;
  report.total = report_acceptance(responses, K);
  if (sets.size() > 1)
    for (const auto& [name, rounds] : sets)
      report.by_set[name] = report_acceptance(rounds, K);
  report.plain_tokens_per_s = static_cast<double>(report.tokens) / std::max(plain_seconds, 1e-9);
  report.speculative_tokens_per_s =
      static_cast<double>(report.tokens) / std::max(speculative_seconds, 1e-9);
  return report;
}

}  // namespace draftsmith::eval
