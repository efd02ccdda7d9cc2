// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "draftsmith/app/command_line.h"
#include "draftsmith/base/error.h"
#include "draftsmith/base/log.h"
#include "draftsmith/data/prompts.h"
#include "draftsmith/data/token_batch.h"
#include "draftsmith/eval/evaluate.h"
#include "draftsmith/formats/json.h"
#include "draftsmith/model/drafter_init.h"

namespace draftsmith::app {
namespace {

constexpr size_t kSamplePrompts = 8;  // for drafter.init = target

formats::Json acceptance_as_json(const eval::AcceptanceReport& report) {
  return {
      {"responses", report.responses},
      {"rounds", report.rounds},
      {"tokens", report.tokens},
      {"acceptance_length", report.pooled},
      {"acceptance_length_95", {report.pooled_95.low, report.pooled_95.high}},
      {"mean_per_response", report.mean_per_response},
      {"by_slot", report.by_slot},
      {"histogram", report.histogram}};
}

formats::Json report_as_json(const eval::EvalReport& report) {
  formats::Json json = acceptance_as_json(report.total);
  json["is_identical"] = report.differences.empty();
  json["differences"] = formats::Json::array();
  for (const auto& item : report.differences)
    json["differences"].push_back(
        {{"prompt", item.prompt}, {"position", item.position}, {"gap", item.gap}});
  json["plain_tokens_per_s"] = report.plain_tokens_per_s;
  json["speculative_tokens_per_s"] = report.speculative_tokens_per_s;
  json["seconds"] = {
      {"prefill", report.times.prefill},
      {"draft", report.times.draft},
      {"verify", report.times.verify}};
  json["sets"] = formats::Json::object();
  for (const auto& [name, set] : report.by_set)
    json["sets"][name] = acceptance_as_json(set);
  return json;
}

void print_acceptance(const std::string& name, const eval::AcceptanceReport& report) {
  print_result(
      "{:<12} {:>9} {:>7} {:>7} {:>11.3f} [{:.3f}, {:.3f}] {:>12.3f}", name, report.responses,
      report.rounds, report.tokens, report.pooled, report.pooled_95.low, report.pooled_95.high,
      report.mean_per_response);
}

void print_histogram(const eval::AcceptanceReport& report) {
  const int64_t most =
      std::max<int64_t>(1, *std::max_element(report.histogram.begin(), report.histogram.end()));
  print_result("tokens per round");
  for (size_t length = 1; length < report.histogram.size(); ++length) {
    const int64_t count = report.histogram[length];
    print_result(
        "{:>4} {:>7} {}", length, count, std::string(static_cast<size_t>(40 * count / most), '#'));
  }
}

void print_report(const eval::EvalReport& report) {
  print_result(
      "{:<12} {:>9} {:>7} {:>7} {:>11} {:<14} {:>14}", "set", "responses", "rounds", "tokens",
      "acceptance", "95 %", "per response");
  for (const auto& [name, set] : report.by_set)
    print_acceptance(name.empty() ? "(none)" : name, set);
  print_acceptance("all", report.total);
  std::vector<std::string> slots;
  for (const double share : report.total.by_slot)
    slots.push_back(fmt::format("{:.3f}", share));
  print_result("accepted up to slot 1, 2, ...: {}", fmt::join(slots, " "));
  print_histogram(report.total);
  print_result(
      "tokens/s: plain {:.1f}, speculative {:.1f}, ratio {:.2f}", report.plain_tokens_per_s,
      report.speculative_tokens_per_s, report.speculative_tokens_per_s / report.plain_tokens_per_s);
  print_result(
      "seconds: prefill {:.1f}, draft {:.1f}, verify {:.1f}", report.times.prefill,
      report.times.draft, report.times.verify);
  print_result(
      "output equal to plain greedy decoding: {}",
      report.differences.empty()
          ? "yes, all tokens"
          : fmt::format(
                "no, in {} of {} answers", report.differences.size(), report.total.responses));
  for (const auto& item : report.differences)
    print_result(
        "  prompt {}: first difference at token {}, gap of the two best logits {:.6f}", item.prompt,
        item.position, item.gap);
}

/// Prompts side by side, padded on the right: what `drafter.init = target` measures norms on.
torch::Tensor sample_prompts(const std::vector<data::Prompt>& prompts) {
  std::vector<data::TokenSequence> sequences;
  for (size_t i = 0; i < std::min(prompts.size(), kSamplePrompts); ++i)
    sequences.push_back({prompts[i].ids, std::vector<uint8_t>(prompts[i].ids.size(), 0)});
  return data::pad_sequences(sequences, {}).ids;
}

}  // namespace

void run_eval(RunConfig config, const Flags& flags) {
  if (config.eval.prompts.empty()) {
    throw ConfigError(
        {.what = "eval.prompts",
         .expected = "a file of prompts",
         .got = "none",
         .hint = "--eval.prompts=FILE"});
  }
  config.drafter.init = resolve_drafter_folder(config.drafter.init);
  const auto vocab_size = formats::read_target_config(config.target.path).vocab_size;
  const auto prompts = data::read_prompts(config.eval.prompts, vocab_size);
  const auto target = model::Target::load(config.target);
  const auto drafter = model::make_drafter(
      config.drafter, config.target, target, sample_prompts(prompts),
      static_cast<uint64_t>(config.train.seed));
  const eval::DecodeLimits limits{
      config.eval.max_new_tokens, config.eval.ignore_stop
                                      ? std::vector<int64_t>{}
                                      : formats::read_stop_token_ids(config.target.path)};
  const auto report = eval::evaluate_chain(target, drafter, prompts, limits);
  if (flags.json) {
    print_line(report_as_json(report).dump());
  } else {
    print_report(report);
  }
}

}  // namespace draftsmith::app
