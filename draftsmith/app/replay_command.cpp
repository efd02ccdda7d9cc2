// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "draftsmith/app/command_line.h"
#include "draftsmith/base/error.h"
#include "draftsmith/base/log.h"
#include "draftsmith/model/drafter_init.h"
#include "draftsmith/pipeline/target_states.h"
#include "draftsmith/pipeline/train_batch.h"
#include "draftsmith/train/bad_step.h"
#include "draftsmith/train/checkpoint_list.h"
#include "draftsmith/train/step.h"

namespace draftsmith::app {
namespace {

/// Settings of the weights that the batches failed with, or the nearest before them that were kept.
model::DrafterSettings choose_weights(const RunConfig& config, const train::ReplayFile& replay) {
  auto settings = config.drafter;
  const auto checkpoint = train::find_newest_checkpoint(replay.run_folder, replay.weights_step);
  const int64_t step = checkpoint ? train::read_progress(*checkpoint).step : 0;
  if (checkpoint) settings.init = checkpoint->string();
  log_info(
      "weights after step {}{}", step,
      step == replay.weights_step
          ? std::string(", as in the run")
          : fmt::format("; those of the run, after step {}, were not kept", replay.weights_step));
  if (settings.init == "target") {
    throw ConfigError(
        {.what = "--replay",
         .expected = "a checkpoint of the run",
         .got = "none",
         .where = replay.run_folder.string(),
         .hint = "--drafter.init=FOLDER"});
  }
  return settings;
}

/// Names the sequences of a batch for which `take(begin, end)` gives something that is not finite.
/// The batch's sequences stand in one row (data::join_rows); begin and end are places in it.
template <class Take>
std::string name_bad_sequences(const data::TokenBatch& tokens, const Take& take) {
  std::vector<int64_t> bad;
  for (const auto& part : tokens.parts) {
    const int64_t begin = part.row * tokens.ids.size(1) + part.row_begin;
    if (!take(begin, begin + part.length).isfinite().all().template item<bool>())
      bad.push_back(part.sequence);
  }
  return bad.empty() ? "finite" : fmt::format("not finite in sequences {}", fmt::join(bad, ", "));
}

/// Runs one batch and prints what came of it; whether all of it was finite.
bool show_batch(
    const model::Drafter& drafter,
    const model::Target& target,
    const pipeline::TrainBatch& batch,
    const train::LossSettings& loss) {
  const auto& anchors = batch.blocks.layout.anchors[0];
  const auto step =
      train::run_micro_step(drafter, target.lm_head().to(drafter.dtype()), batch, loss);
  print_result(
      "epoch {}, batch {}: sequences {}", batch.at.epoch, batch.at.batch,
      fmt::join(batch.tokens.sequences, ", "));
  const auto name_bad = [&](const torch::Tensor& states) {  // [1, B S, ...]
    return name_bad_sequences(
        batch.tokens, [&](int64_t begin, int64_t end) { return states[0].slice(0, begin, end); });
  };
  const auto blocks = step.hidden[0].cpu().unflatten(0, {anchors.size(0), -1});  // [N, K, D]
  print_result("  target's features: {}", name_bad(batch.features));
  print_result("  target's last states: {}", name_bad(batch.teacher_states));
  print_result(
      "  drafter's hidden states: {}",
      name_bad_sequences(batch.tokens, [&](int64_t begin, int64_t end) {
        const auto is_own = (anchors >= begin).logical_and(anchors < end);
        return blocks.index_select(0, is_own.nonzero().squeeze(1));
      }));
  print_result(
      "  loss {} (ce {}, kl {}, cap {})", step.sums.loss(), step.sums.ce(), step.sums.kl(),
      step.sums.cap());
  bool is_finite = std::isfinite(step.sums.loss_sum);
  for (size_t i = 0; i < step.gradients.size(); ++i) {
    if (!step.gradients[i].defined() || step.gradients[i].isfinite().all().item<bool>()) continue;
    print_result("  gradient of {}: not finite", drafter.parameters()[i].first);
    is_finite = false;
  }
  return is_finite;
}

}  // namespace

void run_replay(const RunConfig& config, const Flags& flags) {
  const auto replay = train::read_bad_step(flags.replay);
  // All as in training: what it reads, and where the target's states come from.
  const auto target_config = formats::read_target_config(config.target.path);
  auto source = data::BatchSource::open(
      pipeline::fit_positions(config.data, target_config), target_config.vocab_size,
      replay.run_folder);
  const auto settings = choose_weights(config, replay);
  auto drafter_config = model::make_drafter_config(settings, target_config, config.target.path);
  const auto target =
      pipeline::open_target(config.target, config.data.path, drafter_config.target_layer_ids);
  const auto drafter = model::build_drafter(
      settings, std::move(drafter_config), target, {}, static_cast<uint64_t>(config.train.seed));
  bool is_finite = true;
  for (size_t i = 0; i < replay.cursors.size(); ++i) {
    auto read = source.read(replay.cursors[i], drafter.block_rule(config.loss.block_decay()));
    if (read.tokens.sequences != replay.sequences[i]) {
      throw DataError(
          {.what = flags.replay,
           .expected = fmt::format("sequences {}", fmt::join(replay.sequences[i], ", ")),
           .got = fmt::format("{}", fmt::join(read.tokens.sequences, ", ")),
           .where = config.data.path,
           .hint = "the dataset and data settings of the run"});
    }
    const auto batch = pipeline::make_train_batch(
        target, std::move(read), drafter.config().target_layer_ids, drafter.dtype());
    is_finite = show_batch(drafter, target, batch, config.loss) && is_finite;
  }
  if (is_finite) return;
  throw DivergenceError(
      {.what = "replay",
       .expected = "finite losses and gradients",
       .got = "others, see above",
       .where = flags.replay});
}

}  // namespace draftsmith::app
