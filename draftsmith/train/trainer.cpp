// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/trainer.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"
#include "draftsmith/base/log.h"
#include "draftsmith/base/progress.h"
#include "draftsmith/base/stopwatch.h"
#include "draftsmith/formats/json.h"
#include "draftsmith/memory/host_allocator.h"

namespace draftsmith::train {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kMaxFailuresInARow = 10;

AdamWSettings make_adamw_settings(const TrainSettings& settings) {
  if (settings.betas.size() != 2) {
    throw ConfigError(
        {.what = "train.betas",
         .expected = "two numbers",
         .got = fmt::format("{}", settings.betas.size()),
         .hint = "--train.betas=0.9,0.95"});
  }
  return {
      .beta1 = settings.betas[0],
      .beta2 = settings.betas[1],
      .weight_decay = settings.weight_decay,
      .clip_norm = settings.clip_norm};
}

}  // namespace

Trainer::Trainer(
    const model::Target& target,
    model::Drafter drafter,
    data::BatchSource source,
    const LossSettings& loss,
    const TrainSettings& settings,
    std::map<std::string, std::string> settings_text)
    : target_(target),
      drafter_(std::move(drafter)),
      lm_head_(target.lm_head().to(drafter_.dtype())),
      source_(std::move(source)),
      loss_(loss),
      settings_(settings),
      optimizer_(drafter_.parameters(), make_adamw_settings(settings)) {
  progress_.settings = std::move(settings_text);
  schedule_.kind = settings.schedule;
  schedule_.peak = settings.lr;
  schedule_.total_steps = count_total_steps();
  schedule_.warmup_steps =
      std::llround(settings.warmup * static_cast<double>(schedule_.total_steps));
}

int64_t Trainer::count_total_steps() {
  if (settings_.max_steps > 0) return settings_.max_steps;
  // Whole epochs are counted exactly; a broken last one takes its share of the batches.
  double batches = 0;
  for (int64_t epoch = 0; static_cast<double>(epoch) < settings_.epochs; ++epoch) {
    const double share = std::min(1.0, settings_.epochs - static_cast<double>(epoch));
    batches += share * static_cast<double>(source_.batches_of_epoch(epoch));
  }
  const double steps = batches / static_cast<double>(settings_.accumulation);
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(steps - 1e-9)));
}

void Trainer::resume(const fs::path& checkpoint) {
  auto settings_text = std::move(progress_.settings);
  progress_ = read_progress(checkpoint);
  progress_.settings = std::move(settings_text);
  const auto saved = formats::SafetensorsReader::open_file(checkpoint / "model.safetensors");
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : drafter_.parameters())
    tensor.copy_(saved.tensor(name, tensor.sizes()));
  load_optimizer(checkpoint, progress_, optimizer_);
  drop_metrics_after(progress_.step);
  log_info("resumed from {} at step {}", checkpoint.string(), progress_.step);
}

void Trainer::drop_metrics_after(int64_t step) const {
  const fs::path path = fs::path(settings_.out) / "metrics.jsonl";
  if (!fs::exists(path)) return;
  std::istringstream lines(read_file(path));
  std::string kept;
  std::string line;
  while (std::getline(lines, line)) {
    const auto json = formats::Json::parse(line, nullptr, /*allow_exceptions=*/false);
    // A line cut short by a crash does not parse and is dropped too.
    if (json.is_object() && json.value("step", INT64_MAX) <= step) kept += line + "\n";
  }
  write_file_atomically(path, kept);
}

bool Trainer::run_step(MetricSums& sums, double& norm) {
  const auto rule = drafter_.block_rule(loss_.decay_gamma);
  MetricSums step_sums;
  auto cursor = progress_.cursor;
  for (int64_t i = 0; i < settings_.accumulation; ++i) {
    const bool is_past_end = settings_.max_steps == 0 && i > 0 &&
                             static_cast<double>(cursor.epoch) + 1 >= settings_.epochs &&
                             cursor.batch >= source_.batches_of_epoch(cursor.epoch);
    if (is_past_end) break;  // the last step takes what is left
    Stopwatch watch;
    auto source_batch = source_.read(cursor, rule);
    step_sums.times.data += watch.restart();
    const auto batch = pipeline::make_train_batch(
        target_, std::move(source_batch), drafter_.config().target_layer_ids, drafter_.dtype());
    step_sums.times.target += watch.seconds();
    cursor = batch.next;
    const MicroStep micro = run_micro_step(drafter_, lm_head_, batch, loss_);
    if (!micro.gradients.empty()) optimizer_.accumulate(micro.gradients);
    step_sums += micro.sums;
  }
  progress_.cursor = cursor;
  if (step_sums.weight_sum == 0) return false;

  Stopwatch watch;
  // One denominator for all micro-steps: a mean of means would weigh short answers more.
  const double scale = 1 / step_sums.weight_sum;
  norm = optimizer_.gradient_norm(scale);
  if (!std::isfinite(norm) || !std::isfinite(step_sums.loss_sum)) {
    optimizer_.clear_gradients();
    log_warning(fmt::format(
        "step {}: loss {} and gradient norm {}: the step is not applied", progress_.step + 1,
        step_sums.loss(), norm));
    if (++failed_in_a_row_ >= kMaxFailuresInARow) {
      throw DivergenceError(
          {.what = "training",
           .expected = "finite losses and gradients",
           .got = fmt::format("{} steps in a row without", failed_in_a_row_),
           .hint = "a smaller train.lr"});
    }
    return false;
  }
  failed_in_a_row_ = 0;
  optimizer_.step(schedule_.lr(progress_.step), scale, norm);
  step_sums.times.optimizer += watch.seconds();
  ++progress_.step;
  progress_.tokens += step_sums.tokens;
  sums += step_sums;
  return true;
}

void Trainer::write_metrics(const MetricSums& sums, double norm, double seconds, int64_t steps) {
  const double per_step = 1000 / static_cast<double>(steps);
  const formats::Json line = {
      {"step", progress_.step},
      {"loss", sums.loss()},
      {"ce", sums.ce()},
      {"kl", sums.kl()},
      {"cap", sums.cap()},
      {"accuracy", sums.accuracy()},
      {"accuracy_by_slot", sums.accuracy_by_slot()},
      {"expected_acceptance", sums.expected_acceptance()},
      {"lr", schedule_.lr(progress_.step - 1)},
      {"grad_norm", norm},
      {"tokens_per_s", static_cast<double>(sums.tokens) / seconds},
      {"step_ms", per_step * seconds},
      {"data_ms", per_step * sums.times.data},
      {"target_ms", per_step * sums.times.target},
      {"forward_ms", per_step * sums.times.forward},
      {"head_ms", per_step * sums.times.head},
      {"backward_ms", per_step * sums.times.backward},
      {"optimizer_ms", per_step * sums.times.optimizer},
      {"peak_bytes", memory::host_bytes().peak}};
  const fs::path path = fs::path(settings_.out) / "metrics.jsonl";
  std::ofstream stream(path, std::ios::app);
  stream << line.dump() << "\n" << std::flush;
  if (!stream) fail_write(path, std::strerror(errno));
}

void Trainer::run() {
  const int64_t total = schedule_.total_steps;
  Progress bar("training", total, "steps", progress_.step);
  MetricSums sums;
  MetricSums shown;  // of the last line, for the progress bar
  Stopwatch since_line;
  int64_t steps_since_line = 0;
  const double seconds_before = progress_.seconds;
  int64_t last_saved = -1;
  while (progress_.step < total) {
    double norm = 0;
    if (!run_step(sums, norm)) continue;
    progress_.seconds = seconds_before + bar.seconds();
    ++steps_since_line;
    const bool is_line_due = progress_.step % settings_.log_every == 0 || progress_.step == total;
    if (is_line_due || shown.blocks == 0) shown = sums;
    bar.update(
        progress_.step,
        fmt::format(
            "loss {:.3f}  accuracy {:.1f} %  expected acceptance {:.2f}  {} tokens/s", shown.loss(),
            100 * shown.accuracy(), shown.expected_acceptance(),
            format_count(static_cast<double>(progress_.tokens) / progress_.seconds)));
    if (is_line_due) {
      write_metrics(sums, norm, since_line.restart(), steps_since_line);
      sums = {};
      steps_since_line = 0;
    }
    if (progress_.step % settings_.save_every == 0) {
      save();
      last_saved = progress_.step;
    }
  }
  bar.finish(fmt::format(
      "loss {:.3f}  expected acceptance {:.2f}", shown.loss(), shown.expected_acceptance()));
  if (last_saved != progress_.step) save();
  StagedFolder exported(fs::path(settings_.out) / "export");
  drafter_.save(exported.path(), torch::kBFloat16);
  exported.publish();
  const auto& report = source_.report();
  log_info(
      "sequences: {} read = {} trained + {} too long + {} without trainable tokens", report.read,
      report.trained, report.too_long, report.no_anchor);
}

}  // namespace draftsmith::train
