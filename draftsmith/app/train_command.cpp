// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "draftsmith/app/command_line.h"
#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"
#include "draftsmith/base/log.h"
#include "draftsmith/model/drafter_init.h"
#include "draftsmith/train/trainer.h"

namespace draftsmith::app {
namespace fs = std::filesystem;
namespace {

void require(const std::string& value, const std::string& key, const std::string& expected) {
  if (!value.empty()) return;
  throw ConfigError(
      {.what = key, .expected = expected, .got = "none", .hint = fmt::format("--{}=...", key)});
}

/// Refuses to write into a run that is not resumed.
void prepare_run_folder(const fs::path& out, bool is_resumed) {
  const bool has_run = fs::exists(out / "settings.toml") || fs::exists(out / "checkpoints");
  if (has_run && !is_resumed) {
    throw ConfigError(
        {.what = "train.out",
         .expected = "a folder without a run",
         .got = "a run",
         .where = out.string(),
         .hint = "--resume, or another folder"});
  }
  if (!has_run && is_resumed) {
    throw ConfigError(
        {.what = "train.out",
         .expected = "the folder of a run to resume",
         .got = "no run",
         .where = out.string(),
         .hint = "leaving out --resume"});
  }
  make_writable_folder(out, "train.out");
}

/// Token ids of some of the first batch, on which `drafter.init = target` measures norms.
torch::Tensor pick_sample(data::BatchSource& source, const data::BlockRule& rule) {
  const auto ids = source.read({}, rule).tokens.ids;
  return ids.narrow(0, 0, std::min<int64_t>(ids.size(0), 4));
}

}  // namespace

void run_train(RunConfig config, const Flags& flags) {
  require(config.target.path, "target.path", "a Hugging Face folder");
  require(config.data.path, "data.path", "a dataset folder");
  require(config.train.out, "train.out", "a run folder");
  const fs::path out = config.train.out;
  if (config.train.name.empty()) config.train.name = make_run_name(config);
  const FieldList fields = list_fields(config);
  const auto settings_text = settings_as_text(fields);
  const auto checkpoint = flags.resume ? train::find_newest_checkpoint(out) : std::nullopt;
  if (checkpoint) {
    check_resumed_settings(
        train::read_progress(*checkpoint).settings, settings_text, config.train.allow_change);
  }

  // Everything that is quick to check comes before weights are read and before files change.
  const auto target_config = formats::read_target_config(config.target.path);
  const bool is_new = config.drafter.init == "random" || config.drafter.init == "target";
  config.drafter.init = resolve_drafter_folder(config.drafter.init);
  if (is_new) model::make_drafter_config(config.drafter, target_config, config.target.path);
  auto source = data::BatchSource::open(config.data, target_config.vocab_size, out);
  const auto target = model::Target::load(config.target);

  prepare_run_folder(out, flags.resume);
  copy_log_to(out / "log.txt");
  log_info("run {}: {}", config.train.name, out.string());
  for (const auto& line : source.describe())
    log_line(line);
  source.save_index();
  const torch::Tensor sample = pick_sample(source, {2, 0, 0});
  auto drafter = model::make_drafter(
      config.drafter, config.target, target, sample, static_cast<uint64_t>(config.train.seed));
  log_info(
      "drafter: {} parameters, {} layers, blocks of {}, mask token {}, sees target layers {}",
      drafter.num_parameters(), drafter.config().num_layers, drafter.config().block_size,
      drafter.config().mask_token_id, fmt::join(drafter.config().target_layer_ids, ", "));

  train::Trainer trainer(
      target, std::move(drafter), std::move(source), config.loss, config.train, settings_text);
  if (checkpoint) trainer.resume(*checkpoint);
  write_file_atomically(out / "settings.toml", write_settings(fields));
  trainer.run();
  print_result("trained {} steps: {}", trainer.total_steps(), (out / "export").string());
  stop_log_copy();
}

}  // namespace draftsmith::app
