// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "draftsmith/app/command_line.h"
#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"
#include "draftsmith/base/log.h"
#include "draftsmith/base/progress.h"
#include "draftsmith/data/dataset_fingerprint.h"
#include "draftsmith/data/dataset_writer.h"
#include "draftsmith/formats/model_fingerprint.h"
#include "draftsmith/pipeline/extract.h"
#include "draftsmith/pipeline/target_states.h"

namespace draftsmith::app {
namespace fs = std::filesystem;
namespace {

void require(const std::string& value, const std::string& key, const std::string& expected) {
  if (!value.empty()) return;
  throw ConfigError(
      {.what = key, .expected = expected, .got = "none", .hint = fmt::format("--{}=...", key)});
}

std::vector<int64_t> choose_layers(const RunConfig& config, const formats::TargetConfig& target) {
  auto layers = config.extract.layers;
  const bool is_new = config.drafter.init == "random" || config.drafter.init == "target";
  if (layers.empty() && !is_new)
    layers = formats::read_drafter_config(resolve_drafter_folder(config.drafter.init))
                 .target_layer_ids;
  if (layers.empty()) layers = config.drafter.target_layer_ids;
  if (layers.empty())
    layers = formats::choose_target_layer_ids(target.num_layers, config.drafter.num_layers);
  model::check_layer_ids(target, layers);
  return layers;
}

/// The one dataset of `data.path`. Errors: ConfigError for a mixture.
data::TokenDataset open_dataset(const data::DataSettings& settings) {
  const auto datasets = data::list_datasets(settings);
  if (datasets.size() == 1) return data::TokenDataset::open(datasets[0].path, settings.split);
  throw ConfigError(
      {.what = "data.path",
       .expected = "one dataset for extract",
       .got = fmt::format("{}", datasets.size()),
       .hint = "extracting each into a folder of its own"});
}

/// Goes on with a stopped extract of the same kind; anything else of this name is refused.
bool is_resumed(const fs::path& out, const data::FeatureHeader& header) {
  if (!fs::exists(out)) return false;
  const auto refuse = [&](std::string expected, std::string got) {
    throw ConfigError(
        {.what = "extract.out",
         .expected = std::move(expected),
         .got = std::move(got),
         .where = out.string(),
         .hint = "another folder"});
  };
  if (!data::is_feature_folder(out))
    refuse("a folder that does not exist yet, or one of a stopped extract", "another one");
  const auto found = data::read_feature_header(out);
  if (found.num_shards > 0) refuse("a folder that is not complete", "a complete one");
  if (found.format != header.format || found.layers != header.layers ||
      found.target != header.target)
    refuse(
        fmt::format(
            "{} of layers [{}] of this target", header.format, fmt::join(header.layers, ", ")),
        fmt::format(
            "{} of layers [{}] of {} target", found.format, fmt::join(found.layers, ", "),
            found.target == header.target ? "this" : "another"));
  if (found.dataset != header.dataset)
    refuse("one of this dataset, " + header.dataset, found.dataset);
  // Shards hold whole batches; of other ones some would be there in part, and be written again.
  if (found.batches != header.batches) refuse(header.batches, found.batches);
  return true;
}

void check_disk(const fs::path& out, int64_t bytes) {
  const auto free_bytes = static_cast<int64_t>(
      fs::space(fs::exists(out) ? out : fs::absolute(out).parent_path()).available);
  log_info(
      "extract: at most {:.2f} GiB to write, {:.2f} GiB free", static_cast<double>(bytes) / 0x1p30,
      static_cast<double>(free_bytes) / 0x1p30);
  if (bytes <= free_bytes) return;
  throw DeviceError(
      {.what = "extract.out",
       .expected = fmt::format("{:.2f} GiB on the disk", static_cast<double>(bytes) / 0x1p30),
       .got = fmt::format("{:.2f} GiB", static_cast<double>(free_bytes) / 0x1p30),
       .where = out.string(),
       .hint = "--extract.format=int8, fewer sequences or another disk"});
}

/// Features stand beside a copy of their dataset, with the same numbers of sequences. The folder
/// appears with the header, so that one without was never of an extract.
void begin_folder(
    const data::TokenDataset& dataset,
    const data::FeatureHeader& header,
    const fs::path& out) {
  data::DatasetWriter writer(out);
  for (int64_t i = 0; i < dataset.num_sequences(); ++i)
    writer.add(dataset.sequence(i));
  data::write_feature_header(writer.staging(), header);
  writer.finish();
}

/// A sequence has one record, and a window would need another.
void check_windows(const data::DataReport& report, const data::DataSettings& settings) {
  if (report.windowed == 0) return;
  throw ConfigError(
      {.what = "data.overlong",
       .expected = fmt::format(
           "cut or skip for extract, as {} sequences are longer than {} tokens", report.windowed,
           settings.max_length),
       .got = settings.overlong,
       .hint = "--data.overlong=cut"});
}

/// Tokens of the sequences that `done` has no features of.
int64_t count_tokens_left(
    const data::TokenDataset& dataset,
    int64_t max_length,
    const std::optional<data::FeatureStore>& done) {
  int64_t tokens = 0;
  for (int64_t i = 0; i < dataset.num_sequences(); ++i)
    if (!done || !done->has(i)) tokens += std::min(dataset.length(i), max_length);
  return tokens;
}

}  // namespace

void run_extract(RunConfig config) {
  require(config.target.path, "target.path", "a Hugging Face folder");
  require(config.data.path, "data.path", "a dataset folder");
  require(config.extract.out, "extract.out", "a folder to write");
  const fs::path out = config.extract.out;
  const auto target_config = formats::read_target_config(config.target.path);
  config.data = pipeline::fit_positions(config.data, target_config);
  const data::FeatureHeader header{
      .format = config.extract.format,
      .layers = choose_layers(config, target_config),
      .hidden_size = target_config.hidden_size,
      .target = formats::fingerprint_model(config.target.path),
      .dataset = data::fingerprint_dataset(open_dataset(config.data)),
      .batches = data::describe_batching(config.data)};
  const bool resumes = is_resumed(out, header);
  auto source = data::BatchSource::open(config.data, target_config.vocab_size, out);
  check_windows(source.report(), config.data);
  for (const auto& line : source.describe())
    log_line(line);
  const auto& dataset = source.dataset(0);
  std::optional<data::FeatureStore> done;
  if (resumes) done.emplace(out, /*is_partial=*/true);
  const int64_t tokens = count_tokens_left(dataset, config.data.max_length, std::nullopt);
  const int64_t left = count_tokens_left(dataset, config.data.max_length, done);
  make_writable_folder(fs::absolute(out).parent_path(), "extract.out");
  check_disk(out, left * header.bytes_per_token());
  const auto target = model::Target::load(config.target);

  if (!resumes) {
    begin_folder(dataset, header, out);
    done.emplace(out, /*is_partial=*/true);
  }
  data::FeatureWriter writer(out, header, done->num_shards());
  Progress progress("extracting", tokens, "tokens", tokens - left);
  pipeline::ExtractCounts written;
  pipeline::ExtractCounts kept;
  const auto follow = [&](const auto& more, const auto& there) {
    written.sequences += more.sequences;
    written.tokens += more.tokens;
    kept.sequences += there.sequences;
    kept.tokens += there.tokens;
    progress.update(tokens - left + written.tokens);
  };
  pipeline::extract_features(target, source, header.layers, *done, writer, follow);
  if (auto held_out = source.held_out())
    pipeline::extract_features(target, *held_out, header.layers, *done, writer, follow);
  writer.finish();
  progress.finish();
  print_result(
      "{}: features of {} sequences ({} of them were there already), {} tokens, {} bytes a token",
      out.string(), written.sequences + kept.sequences, kept.sequences,
      written.tokens + kept.tokens, header.bytes_per_token());
}

}  // namespace draftsmith::app
