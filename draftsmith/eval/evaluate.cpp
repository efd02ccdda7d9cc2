// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/eval/evaluate.h"

#include <algorithm>
#include <limits>

#include "draftsmith/base/error.h"
#include "draftsmith/base/progress.h"
#include "draftsmith/base/stopwatch.h"

namespace draftsmith::eval {
namespace {

using Ids = std::vector<int64_t>;

/// The first position where the answers differ, as a Difference of this prompt; nothing if equal.
std::vector<Difference> compare_answers(
    const model::Target& target,
    int64_t number,
    const Ids& prompt,
    const Ids& plain,
    const Ids& speculative) {
  if (plain == speculative) return {};
  const auto first =
      std::mismatch(plain.begin(), plain.end(), speculative.begin(), speculative.end());
  Ids ids = prompt;
  ids.insert(ids.end(), plain.begin(), first.first);
  return {{number, first.first - plain.begin(), top_gap(target, ids)}};
}

/// A set's sums while prompts are answered.
struct SetSums {
  SetReport report;
  std::vector<std::vector<Round>> rounds;
};

class Evaluation {
 public:
  Evaluation(
      const model::Target& target,
      const std::vector<DraftSource*>& sources,
      const std::vector<data::Prompt>& prompts,
      const DecodeLimits& limits,
      const EvalOptions& options)
      : target_(target),
        sources_(sources),
        prompts_(prompts),
        limits_(limits),
        options_(options),
        reports_(sources.size()),
        sums_(sources.size()) {}

  std::vector<EvalReport> run() {
    Progress progress("evaluating", static_cast<int64_t>(prompts_.size()), "prompts");
    for (size_t begin = 0, end = 0; begin < prompts_.size(); begin = end) {
      end = begin + 1;
      while (end < prompts_.size() && end - begin < static_cast<size_t>(options_.batch) &&
             prompts_[end].set == prompts_[begin].set)
        ++end;
      run_batch(begin, end);
      progress.update(static_cast<int64_t>(end));
    }
    progress.finish();
    for (size_t i = 0; i < sources_.size(); ++i)
      close_report(i);
    return std::move(reports_);
  }

 private:
  bool compares() const { return options_.runs_plainly && options_.expects_identity; }

  void run_batch(size_t begin, size_t end) {
    std::vector<Ids> ids;
    for (size_t i = begin; i < end; ++i)
      ids.push_back(prompts_[i].ids);
    std::vector<Ids> plain;
    double plain_seconds = 0;
    if (options_.runs_plainly) {
      plain_seconds = std::numeric_limits<double>::infinity();
      for (int64_t repeat = 0; repeat < options_.repeats; ++repeat) {
        const Stopwatch watch;
        plain = decode_plainly(target_, ids, limits_, options_.picker, static_cast<int64_t>(begin));
        plain_seconds = std::min(plain_seconds, watch.seconds());
      }
    }
    for (size_t source = 0; source < sources_.size(); ++source) {
      auto& sums = sums_[source][prompts_[begin].set];
      sums.report.plain_seconds += plain_seconds;
      const auto result = run_source(source, ids, begin, sums.report);
      for (size_t i = begin; i < end; ++i)
        count_answer(
            source, i, result.answers[i - begin], plain.empty() ? nullptr : &plain[i - begin],
            sums);
    }
  }

  /// The answers, with the times of the fastest repeat added to the report.
  SpeculativeResult
  run_source(size_t source, const std::vector<Ids>& ids, size_t begin, SetReport& report) {
    SpeculativeResult result;
    DecodeTimes times;
    double seconds = std::numeric_limits<double>::infinity();
    for (int64_t repeat = 0; repeat < options_.repeats; ++repeat) {
      const Stopwatch watch;
      result = decode_speculatively(
          target_, *sources_[source], ids, limits_,
          {.picker = options_.picker,
           .first_response = static_cast<int64_t>(begin),
           .on_round = repeat == 0 ? options_.on_round : nullptr});
      const double elapsed = watch.seconds();
      if (elapsed >= seconds) continue;
      seconds = elapsed;
      times = result.times;
    }
    report.speculative_seconds += seconds;
    report.times += times;
    return result;
  }

  void count_answer(
      size_t source,
      size_t prompt,
      const SpeculativeAnswer& answer,
      const Ids* plain,
      SetSums& sums) {
    auto& report = reports_[source];
    if (compares()) {
      const auto differences = compare_answers(
          target_, static_cast<int64_t>(prompt), prompts_[prompt].ids, *plain, answer.tokens);
      report.differences.insert(report.differences.end(), differences.begin(), differences.end());
    }
    sums.report.tokens += static_cast<int64_t>(answer.tokens.size());
    if (plain != nullptr) sums.report.plain_tokens += static_cast<int64_t>(plain->size());
    sums.rounds.push_back(
        count_emitted(answer.rounds, limits_.max_new_tokens - 1, limits_.stop_ids));
    report.rounds.push_back(sums.rounds.back());
  }

  void close_report(size_t source) {
    auto& report = reports_[source];
    report.is_compared = compares();
    const int64_t block_size = sources_[source]->max_depth() + 1;
    for (auto& [name, sums] : sums_[source]) {
      sums.report.acceptance = report_acceptance(sums.rounds, block_size);
      report.total.tokens += sums.report.tokens;
      report.total.plain_tokens += sums.report.plain_tokens;
      report.total.plain_seconds += sums.report.plain_seconds;
      report.total.speculative_seconds += sums.report.speculative_seconds;
      report.total.times += sums.report.times;
      if (sums_[source].size() > 1) report.by_set[name] = sums.report;
    }
    report.total.acceptance = report_acceptance(report.rounds, block_size);
  }

  const model::Target& target_;
  const std::vector<DraftSource*>& sources_;
  const std::vector<data::Prompt>& prompts_;
  const DecodeLimits& limits_;
  const EvalOptions& options_;
  std::vector<EvalReport> reports_;
  std::vector<std::map<std::string, SetSums>> sums_;
};

}  // namespace

std::vector<EvalReport> evaluate(
    const model::Target& target,
    const std::vector<DraftSource*>& sources,
    const std::vector<data::Prompt>& prompts,
    const DecodeLimits& limits,
    const EvalOptions& options) {
  DS_CHECK(options.batch >= 1 && options.repeats >= 1);
  return Evaluation(target, sources, prompts, limits, options).run();
}

}  // namespace draftsmith::eval
