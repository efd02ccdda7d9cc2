// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "draftsmith/data/batch_source.h"
#include "draftsmith/model/drafter.h"
#include "draftsmith/model/target.h"
#include "draftsmith/train/checkpoint.h"
#include "draftsmith/train/optimizer.h"
#include "draftsmith/train/schedule.h"
#include "draftsmith/train/settings.h"
#include "draftsmith/train/step.h"

namespace draftsmith::train {

/// The training loop of one run folder.
class Trainer {
 public:
  /// `settings_text` is the resolved settings, stamped into checkpoints.
  Trainer(
      const model::Target& target,
      model::Drafter drafter,
      data::BatchSource source,
      const LossSettings& loss,
      const TrainSettings& settings,
      std::map<std::string, std::string> settings_text);

  /// How steps are computed; the numbers are the same up to rounding.
  void use_plan(const model::ForwardPlan& plan) { plan_ = plan; }

  /// Goes on from a checkpoint of this run: bit for bit what the unbroken run would have done.
  void resume(const std::filesystem::path& checkpoint);

  /// Trains to the last step, then writes the last checkpoint and `export/`.
  /// Errors: DivergenceError after ten steps in a row without finite numbers.
  void run();

  const model::Drafter& drafter() const { return drafter_; }
  int64_t total_steps() const { return schedule_.total_steps; }

 private:
  /// One optimizer step from `accumulation` batches; false if nothing could be applied.
  bool run_step(MetricSums& sums, double& norm);
  int64_t count_total_steps();
  void write_metrics(const MetricSums& sums, double norm, double seconds, int64_t steps);
  void drop_metrics_after(int64_t step) const;
  void save() {
    write_checkpoint(settings_.out, drafter_, optimizer_, progress_, settings_.keep_last);
  }

  const model::Target& target_;
  model::Drafter drafter_;
  torch::Tensor lm_head_;  // [V, D] in the drafter's dtype
  data::BatchSource source_;
  LossSettings loss_;
  model::ForwardPlan plan_;
  TrainSettings settings_;
  AdamW optimizer_;
  Schedule schedule_;
  TrainProgress progress_;
  int64_t failed_in_a_row_ = 0;
};

}  // namespace draftsmith::train
