// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "draftsmith/app/command_line.h"
#include "draftsmith/base/error.h"
#include "draftsmith/base/log.h"
#include "draftsmith/base/progress.h"
#include "draftsmith/base/random.h"
#include "draftsmith/data/batch_source.h"
#include "draftsmith/data/dataset_report.h"
#include "draftsmith/formats/hf_config.h"
#include "draftsmith/formats/json.h"
#include "draftsmith/formats/vocabulary.h"
#include "draftsmith/model/target.h"
#include "draftsmith/pipeline/target_states.h"

namespace draftsmith::app {
namespace {

constexpr int64_t kJudgedSequences = 64;  // how many answers are compared with the target
constexpr int64_t kJudgedLength = 2048;   // and how many tokens of each
constexpr int64_t kLogitRows = 256;       // logits that exist together
constexpr int64_t kNoVocabulary = std::numeric_limits<int64_t>::max();

double percent(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

/// How many supervised tokens are what the target itself would have said.
struct Judgement {
  int64_t tokens = 0;
  int64_t argmax = 0;
};

Judgement judge(const data::TokenDataset& dataset, const model::Target& target) {
  // Spread over the dataset by a hash, so that no order of it matters.
  const int64_t count = dataset.num_sequences();
  std::vector<int64_t> rows;
  for (uint64_t i = 0; static_cast<int64_t>(i) < std::min(count, kJudgedSequences); ++i)
    rows.push_back(
        count <= kJudgedSequences
            ? static_cast<int64_t>(i)
            : static_cast<int64_t>(hash_key({i}) % static_cast<uint64_t>(count)));
  Judgement judgement;
  Progress progress("asking the target", static_cast<int64_t>(rows.size()), "sequences");
  for (size_t r = 0; r < rows.size(); ++r) {
    progress.update(static_cast<int64_t>(r));
    auto sequence = dataset.sequence(rows[r]);
    const auto length = std::min<int64_t>(static_cast<int64_t>(sequence.ids.size()), kJudgedLength);
    if (length < 2) continue;
    sequence.ids.resize(static_cast<size_t>(length));
    const auto ids = torch::tensor(sequence.ids, torch::kLong);
    const auto last = target.forward(ids.unsqueeze(0), {0}).last[0];
    for (int64_t begin = 0; begin + 1 < length; begin += kLogitRows) {
      const int64_t end = std::min(begin + kLogitRows, length - 1);
      const auto best = target.logits(last.slice(0, begin, end)).argmax(-1);
      const auto is_same = best.eq(ids.slice(0, begin + 1, end + 1)).contiguous();
      for (int64_t i = begin; i < end; ++i) {
        if (sequence.mask[static_cast<size_t>(i + 1)] == 0) continue;
        ++judgement.tokens;
        judgement.argmax += is_same.data_ptr<bool>()[i - begin] ? 1 : 0;
      }
    }
  }
  return judgement;
}

/// The ids of a sequence as text, its supervised stretches in colour, or in brackets where there
/// are no colours.
std::string preview(const data::TokenSequence& sequence, const formats::Vocabulary& vocabulary) {
  const bool has_colour = ::isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr;
  const char* const open = has_colour ? "\x1b[30;42m" : "[[";
  const char* const close = has_colour ? "\x1b[0m" : "]]";
  std::string text;
  bool is_open = false;
  for (size_t i = 0; i < sequence.ids.size(); ++i) {
    const bool is_supervised = sequence.mask[i] != 0;
    if (is_supervised != is_open) text += is_supervised ? open : close;
    is_open = is_supervised;
    text +=
        vocabulary.empty() ? fmt::format("{} ", sequence.ids[i]) : vocabulary.text(sequence.ids[i]);
  }
  return is_open ? text + close : text;
}

/// The preview of a row, or why there is none: a damaged row hides no other one.
std::string
preview_row(const data::TokenDataset& dataset, int64_t row, const formats::Vocabulary& vocabulary) {
  try {
    return preview(dataset.sequence(row), vocabulary);
  } catch (const DataError& error) {
    return error.what();
  }
}

struct NamedFinding {
  const char* key;
  const char* label;
  const data::Finding& finding;
};

std::vector<NamedFinding> list_findings(const data::DatasetReport& report) {
  return {
      {"unreadable", "cannot be read", report.unreadable},
      {"empty", "are empty", report.empty},
      {"unsupervised", "have no supervised token", report.unsupervised},
      {"no_anchor", "have no two supervised tokens in a row", report.no_anchor},
      {"all_supervised", "have no prompt: every token is supervised", report.all_supervised},
      {"outside_vocabulary", "have an id outside the vocabulary", report.outside},
      {"duplicates", "repeat an earlier sequence", report.duplicates}};
}

formats::Json as_json(const data::TokenDataset& dataset, const data::DatasetReport& report) {
  formats::Json json = {
      {"path", dataset.folder().string()},
      {"sequences", report.sequences},
      {"tokens", report.tokens},
      {"supervised_tokens", report.supervised_tokens},
      {"lengths",
       {{"min", report.length_at(0)},
        {"p5", report.length_at(0.05)},
        {"median", report.length_at(0.5)},
        {"p95", report.length_at(0.95)},
        {"max", report.length_at(1)}}}};
  for (const auto& [key, label, finding] : list_findings(report))
    json[key] = finding.count;
  return json;
}

void print_report(const data::TokenDataset& dataset, const data::DatasetReport& report) {
  print_result("{}", dataset.folder().string());
  print_result(
      "{} sequences, {} tokens, {} of them supervised ({:.1f} %)", report.sequences, report.tokens,
      report.supervised_tokens, percent(report.supervised_tokens, report.tokens));
  print_result(
      "tokens of a sequence: shortest {}, 5 % {}, median {}, 95 % {}, longest {}",
      report.length_at(0), report.length_at(0.05), report.length_at(0.5), report.length_at(0.95),
      report.length_at(1));
  for (const auto& [key, label, finding] : list_findings(report)) {
    if (finding.count == 0) continue;
    print_result(
        "{} sequences ({:.2f} %) {}; the first: {}", finding.count,
        percent(finding.count, report.sequences), label, finding.example);
  }
}

/// Batches as training would make them; what refuses to be trained on is said, not thrown.
void print_batches(const data::DataSettings& settings) {
  try {
    const auto source = data::BatchSource::open(settings, kNoVocabulary, {});
    for (const auto& line : source.describe())
      print_line(line);
  } catch (const DataError& error) {
    print_result("not trainable: {}", error.what());
  }
}

}  // namespace

void run_data(RunConfig config, const Flags& flags) {
  if (config.data.path.empty())
    throw ConfigError(
        {.what = "data.path",
         .expected = "a dataset folder",
         .got = "none",
         .hint = "--data.path=..."});
  if (!flags.target.empty()) config.target.path = flags.target;
  const bool has_target = !config.target.path.empty();
  int64_t vocab_size = kNoVocabulary;
  if (has_target) {
    const auto target_config = formats::read_target_config(config.target.path);
    vocab_size = target_config.vocab_size;
    config.data = pipeline::fit_positions(config.data, target_config);
  }
  const auto vocabulary =
      has_target ? formats::Vocabulary::from_folder(config.target.path) : formats::Vocabulary();
  std::optional<model::Target> target;
  if (has_target) target = model::Target::load(config.target);

  formats::Json json = formats::Json::array();
  data::Finding damage;
  for (const auto& [path, weight] : data::list_datasets(config.data)) {
    const auto dataset = data::TokenDataset::open(path, config.data.split);
    const auto report = data::inspect_dataset(dataset, vocab_size);
    json.push_back(as_json(dataset, report));
    if (!flags.json) print_report(dataset, report);
    const bool is_damaged = report.unreadable.count + report.outside.count > 0;
    if (is_damaged)
      damage.add(report.unreadable.count > 0 ? report.unreadable.example : report.outside.example);
    if (target && !is_damaged) {
      const Judgement judgement = judge(dataset, *target);
      json.back()["target_argmax_share"] = percent(judgement.argmax, judgement.tokens) / 100;
      if (!flags.json)
        print_result(
            "{:.1f} % of {} supervised tokens are the target's own first choice{}",
            percent(judgement.argmax, judgement.tokens), judgement.tokens,
            percent(judgement.argmax, judgement.tokens) < 60
                ? ": these answers are hardly its own, let it write new ones (tools/regenerate)"
                : "");
    }
    for (int64_t i = 0; !flags.json && i < std::min(flags.show, dataset.num_sequences()); ++i)
      print_result("--- row {}\n{}", i, preview_row(dataset, i, vocabulary));
  }
  if (flags.json) {
    print_line(json.dump(2));
  } else if (damage.count == 0) {
    print_batches(config.data);
  }
  if (damage.count > 0) {
    throw DataError(
        {.what = "dataset",
         .expected = "sequences that can be trained on",
         .got = damage.example,
         .where = config.data.path});
  }
}

}  // namespace draftsmith::app
