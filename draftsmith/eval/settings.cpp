// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/eval/settings.h"

#include "draftsmith/base/error.h"

namespace draftsmith::eval {

void add_fields(FieldList& fields, EvalSettings& settings) {
  fields.begin_section("eval");
  fields.add_choice(
      "method", settings.method, {"chain", "tree"},
      "what is verified: the drafter's best guess per slot, or a tree of likely prefixes");
  fields.add(
      "tree_budget", settings.tree_budget, "nodes of the tree, the anchor not counted",
      kAtLeastZero);
  fields.add(
      "temperature", settings.temperature, "0 = greedy; else tokens are drawn", kAtLeastZero);
  fields.add(
      "sample_drafts", settings.sample_drafts,
      "whether a chain's drafts are drawn at the temperature too, instead of the best guesses");
  fields.add("seed", settings.seed, "seed of the draws", kAtLeastZero);
  fields.add(
      "prompts", settings.prompts,
      "JSON lines with input_ids, or text for a target with tokenizer.json, and optionally set");
  fields.add("max_new_tokens", settings.max_new_tokens, "longest answer, in tokens", kAtLeastOne);
  fields.add("ignore_stop", settings.ignore_stop, "whether answers go on after a stop token");
  fields.add(
      "batch", settings.batch, "prompts of a set decoded side by side; 1 = as for a single user",
      kAtLeastOne);
  fields.add(
      "repeats", settings.repeats, "times that each answer is made; the fastest one counts",
      kAtLeastOne);
  fields.add_choice(
      "sweep", settings.sweep, {"none", "budget"},
      "budget = the chain and trees of many sizes, to find the fastest on this machine");
  fields.add(
      "compare", settings.compare, "a second drafter's folder, measured on the same prompts");
}

void add_fields(FieldList& fields, GenerateSettings& settings) {
  fields.begin_section("generate");
  fields.add("prompts", settings.prompts, "JSON lines with input_ids");
  fields.add("out", settings.out, "folder of the dataset to write");
  fields.add("batch", settings.batch, "prompts answered side by side", kAtLeastOne);
  fields.add("max_new_tokens", settings.max_new_tokens, "longest answer, in tokens", kAtLeastOne);
  fields.add(
      "temperature", settings.temperature, "0 = greedy; else tokens are drawn", kAtLeastZero);
  fields.add("seed", settings.seed, "seed of the draws", kAtLeastZero);
  fields.add("ignore_stop", settings.ignore_stop, "whether answers go on after a stop token");
}

TokenPicker make_picker(const EvalSettings& settings) {
  return {settings.temperature, static_cast<uint64_t>(settings.seed)};
}

DraftOptions make_draft_options(const EvalSettings& settings) {
  const bool is_tree = settings.method == "tree";
  if (is_tree && settings.sample_drafts) {
    throw ConfigError(
        {.what = "eval.sample_drafts",
         .expected = "false for eval.method = tree",
         .got = "true",
         .hint = "--eval.method=chain"});
  }
  return {
      .shape = is_tree ? DraftShape::kTree : DraftShape::kChain,
      .tree_budget = settings.tree_budget,
      .samples_drafts = settings.sample_drafts,
      .picker = make_picker(settings)};
}

}  // namespace draftsmith::eval
