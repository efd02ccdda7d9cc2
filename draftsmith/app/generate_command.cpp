// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "draftsmith/app/command_line.h"
#include "draftsmith/app/text_prompts.h"
#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"
#include "draftsmith/base/log.h"
#include "draftsmith/base/progress.h"
#include "draftsmith/data/dataset_writer.h"
#include "draftsmith/data/prompts.h"
#include "draftsmith/eval/plain_decode.h"

namespace draftsmith::app {
namespace fs = std::filesystem;
namespace {

data::TokenSequence join(const std::vector<int64_t>& prompt, const std::vector<int64_t>& answer) {
  data::TokenSequence sequence;
  sequence.ids = prompt;
  sequence.ids.insert(sequence.ids.end(), answer.begin(), answer.end());
  sequence.mask.assign(prompt.size(), 0);
  sequence.mask.resize(sequence.ids.size(), 1);
  return sequence;
}

void check_output(const std::string& out) {
  if (out.empty()) {
    throw ConfigError(
        {.what = "generate.out",
         .expected = "a folder to write",
         .got = "none",
         .hint = "--generate.out=DIR"});
  }
  const fs::path path(out);
  if (fs::exists(path)) {
    throw ConfigError(
        {.what = "generate.out",
         .expected = "a folder that does not exist yet",
         .got = "one that does",
         .where = out,
         .hint = "another folder"});
  }
  make_writable_folder(fs::absolute(path).parent_path(), "generate.out");
}

}  // namespace

void run_generate(RunConfig config) {
  const auto& settings = config.generate;
  if (settings.prompts.empty()) {
    throw ConfigError(
        {.what = "generate.prompts",
         .expected = "a file of prompts",
         .got = "none",
         .hint = "--generate.prompts=FILE"});
  }
  check_output(settings.out);
  const auto target_config = formats::read_target_config(config.target.path);
  const auto prompts = data::read_prompts(settings.prompts, target_config.vocab_size);
  check_prompt_lengths(prompts, target_config, "generate.max_new_tokens", settings.max_new_tokens);
  const auto target = model::Target::load(config.target);
  const eval::DecodeLimits limits{
      settings.max_new_tokens, settings.ignore_stop
                                   ? std::vector<int64_t>{}
                                   : formats::read_stop_token_ids(config.target.path)};

  const eval::TokenPicker picker(settings.temperature, static_cast<uint64_t>(settings.seed));

  // Prompts of similar length share a batch; the dataset keeps the order of the file.
  std::vector<size_t> order(prompts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t left, size_t right) {
    return prompts[left].ids.size() < prompts[right].ids.size();
  });
  std::vector<data::TokenSequence> sequences(prompts.size());
  const auto batch = static_cast<size_t>(settings.batch);
  int64_t new_tokens = 0;
  Progress progress(
      "generating", static_cast<int64_t>(prompts.size()) * limits.max_new_tokens, "tokens");
  for (size_t first = 0; first < order.size(); first += batch) {
    const size_t end = std::min(first + batch, order.size());
    std::vector<std::vector<int64_t>> ids;
    for (size_t i = first; i < end; ++i)
      ids.push_back(prompts[order[i]].ids);
    const auto answers = eval::decode_plainly(
        target, ids, limits, picker, static_cast<int64_t>(first), [&](int64_t added) {
          new_tokens += added;
          progress.update(new_tokens, fmt::format("{}/{} prompts", first, prompts.size()));
        });
    for (size_t i = first; i < end; ++i)
      sequences[order[i]] = join(prompts[order[i]].ids, answers[i - first]);
  }
  progress.finish(fmt::format("{} prompts answered", prompts.size()));
  data::write_dataset(settings.out, sequences);
  print_result(
      "{}: {} sequences, {} new tokens, {:.0f} new tokens/s", settings.out, sequences.size(),
      new_tokens, static_cast<double>(new_tokens) / progress.seconds());
}

}  // namespace draftsmith::app
