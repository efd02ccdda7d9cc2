// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <optional>
#include <set>

#include "draftsmith/app/command_line.h"
#include "draftsmith/app/eval_report.h"
#include "draftsmith/app/text_prompts.h"
#include "draftsmith/base/error.h"
#include "draftsmith/base/log.h"
#include "draftsmith/data/token_batch.h"
#include "draftsmith/model/drafter_init.h"

namespace draftsmith::app {
namespace {

constexpr size_t kSamplePrompts = 8;  // for drafter.init = target
constexpr int64_t kSweptBudgets[] = {2, 4, 6, 8, 12, 16, 24, 32, 48, 64};

/// Prompts side by side, padded on the right: what `drafter.init = target` measures norms on.
torch::Tensor sample_prompts(const std::vector<data::Prompt>& prompts) {
  std::vector<data::TokenSequence> sequences;
  for (size_t i = 0; i < std::min(prompts.size(), kSamplePrompts); ++i)
    sequences.push_back({prompts[i].ids, std::vector<uint8_t>(prompts[i].ids.size(), 0)});
  return data::pad_sequences(sequences, {}).ids;
}

/// The methods to measure: the one that was asked for first.
std::vector<MeasuredMethod> list_methods(const eval::EvalSettings& settings) {
  std::vector<MeasuredMethod> methods = {{settings.method, settings.tree_budget, {}}};
  if (settings.sweep != "budget") return methods;
  if (settings.method != "chain") methods.push_back({"chain", 0, {}});
  std::set<int64_t> budgets(std::begin(kSweptBudgets), std::end(kSweptBudgets));
  budgets.insert(settings.tree_budget);
  if (settings.method == "tree") budgets.erase(settings.tree_budget);
  for (const int64_t budget : budgets)
    methods.push_back({"tree", budget, {}});
  return methods;
}

void check_settings(const eval::EvalSettings& settings, const Flags& flags) {
  const auto refuse = [](const char* key, const char* expected, const char* got) {
    throw ConfigError({.what = key, .expected = expected, .got = got, .where = "eval"});
  };
  if (settings.prompts.empty()) {
    throw ConfigError(
        {.what = "eval.prompts",
         .expected = "a file of prompts",
         .got = "none",
         .hint = "--eval.prompts=FILE"});
  }
  if (settings.sweep != "none" && !settings.compare.empty())
    refuse("eval.sweep", "none beside eval.compare", "budget");
  if (settings.sweep != "none" && settings.sample_drafts)
    refuse("eval.sweep", "none beside eval.sample_drafts, which is for chains", "budget");
  if (flags.trace && flags.json) refuse("--trace", "no --json beside it", "both");
}

}  // namespace

void run_eval(RunConfig config, const Flags& flags) {
  check_settings(config.eval, flags);
  make_draft_options(config.eval);  // refuses before anything is loaded
  config.drafter.init = resolve_drafter_folder(config.drafter.init);
  const auto target_config = formats::read_target_config(config.target.path);
  const auto drafter_config =
      model::make_drafter_config(config.drafter, target_config, config.target.path);
  const auto prompts =
      read_text_prompts(config.eval.prompts, config.target.path, target_config.vocab_size);
  check_prompt_lengths(
      prompts, target_config, "eval.max_new_tokens", config.eval.max_new_tokens,
      drafter_config.block_size - 1);
  const auto target = model::Target::load(config.target);
  const auto load_drafter = [&](const std::string& init) {
    auto settings = config.drafter;
    settings.init = init;
    return model::make_drafter(
        settings, config.target, target, sample_prompts(prompts),
        static_cast<uint64_t>(config.train.seed));
  };
  const auto drafter = load_drafter(config.drafter.init);
  const eval::DecodeLimits limits{
      config.eval.max_new_tokens, config.eval.ignore_stop
                                      ? std::vector<int64_t>{}
                                      : formats::read_stop_token_ids(config.target.path)};

  EvalResult result;
  result.methods = list_methods(config.eval);
  std::vector<std::unique_ptr<eval::DraftSource>> sources;
  for (const auto& method : result.methods) {
    auto settings = config.eval;
    settings.method = method.method;
    settings.tree_budget = method.tree_budget;
    sources.push_back(
        std::make_unique<eval::DrafterSource>(target, drafter, make_draft_options(settings)));
  }
  std::optional<model::Drafter> other;
  if (!config.eval.compare.empty()) {
    result.compared_drafter = config.eval.compare;
    other = load_drafter(resolve_drafter_folder(config.eval.compare));
    result.methods.push_back(result.methods.front());
    sources.push_back(
        std::make_unique<eval::DrafterSource>(target, *other, make_draft_options(config.eval)));
  }

  std::vector<eval::DraftSource*> pointers;
  for (const auto& source : sources)
    pointers.push_back(source.get());
  eval::EvalOptions options{
      .picker = make_picker(config.eval),
      .batch = config.eval.batch,
      .repeats = config.eval.repeats,
      .expects_identity = !config.eval.sample_drafts || config.eval.temperature == 0};
  if (flags.trace)
    options.on_round = [text = formats::Vocabulary::from_folder(config.target.path)](
                           const eval::RoundTrace& trace) { print_round(trace, text); };
  auto reports = eval::evaluate(target, pointers, prompts, limits, options);
  for (size_t i = 0; i < reports.size(); ++i)
    result.methods[i].report = std::move(reports[i]);
  if (other) {
    result.difference = eval::compare_acceptance(
        result.methods.front().report.rounds, result.methods.back().report.rounds);
  }
  if (flags.json) {
    print_line(report_as_json(result).dump());
  } else {
    print_report(result);
  }
}

}  // namespace draftsmith::app
