// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "draftsmith/data/batch_source.h"
#include "draftsmith/model/drafter.h"
#include "draftsmith/model/target.h"
#include "draftsmith/pipeline/batch_feed.h"
#include "draftsmith/train/bad_step.h"
#include "draftsmith/train/checkpoint_writer.h"
#include "draftsmith/train/evaluation.h"
#include "draftsmith/train/optimizer.h"
#include "draftsmith/train/run_log.h"
#include "draftsmith/train/schedule.h"
#include "draftsmith/train/settings.h"
#include "draftsmith/train/step.h"

namespace draftsmith::train {

/// The training loop of one run folder. Of several ranks each has a trainer of its own, with a copy
/// of the drafter; batches go round among them, steps are taken together, and the first rank
/// writes. Whatever decides the way of a run is summed over ranks before, so that no rank waits for
/// one that went another way.
class Trainer {
 public:
  Trainer(
      const model::Target& target,
      model::Drafter drafter,
      data::BatchSource source,
      const LossSettings& loss,
      const TrainSettings& settings,
      RunStamp stamp,
      pipeline::Ranks ranks = {});

  /// Evaluates on these sequences every train.eval_every steps, and lets `checkpoints/best` point
  /// to the step of the longest acceptance. The weights are the same with and without it.
  void evaluate_on(data::BatchSource held_out) { held_out_.emplace(std::move(held_out)); }

  /// How steps are computed; the numbers are the same up to rounding.
  void use_plan(const model::ForwardPlan& plan) { plan_ = plan; }

  /// Records the drafter's forward and backward for each shape of batches, by the plan of
  /// `use_plan`, instead of running them anew in every step. Evaluations are not recorded.
  void use_recorder(std::unique_ptr<ops::Recorder> recorder);

  /// Logged steps and evaluations also count the expected tokens of trees of this many nodes.
  void count_trees_of(int64_t budget) { tree_budget_ = budget; }

  /// What batches must be made of for this drafter and loss.
  pipeline::BatchRecipe recipe() const;

  /// Takes batches from this feed, which must begin with the first batch that the run has not
  /// consumed. Without it the trainer reads and runs the target itself.
  void use_feed(std::unique_ptr<pipeline::BatchFeed> feed) { feed_ = std::move(feed); }

  /// Makes the batches of evaluations in this way; else the target runs here.
  void use_batch_maker(BatchMaker make_batch) { make_batch_ = std::move(make_batch); }

  /// Goes on from a checkpoint of this run, by whatever number of ranks: the same sequences in the
  /// same order. By as many as before: bit for bit what the unbroken run would have done.
  void resume(const std::filesystem::path& checkpoint);

  /// Trains to the last step, or until `should_stop`, asked before every step, says so on any rank;
  /// writes
  /// the last checkpoint and, at the last step, `export/`. Returns whether it came there.
  /// Errors: DivergenceError after ten steps in a row without finite numbers; DeviceError if the
  /// disk has no room for the checkpoints or if one cannot be written.
  bool run(const std::function<bool()>& should_stop = [] { return false; });

  const model::Drafter& drafter() const { return drafter_; }
  const TrainProgress& progress() const { return progress_; }
  int64_t total_steps() const { return schedule_.total_steps; }

 private:
  /// Runs micro-steps of made-up batches and forgets what comes of them: threads and libraries are
  /// then started, and with static shapes nothing is left to be recorded or allocated.
  void warm_up();
  /// Adds this rank's batches of a step to `sums`, the first for all and one for each source, and
  /// their gradients to the optimizer. `step` notes the batches, should something be wrong with
  /// them.
  void run_micro_steps(BadStep& step, int64_t num_batches, std::vector<MetricSums>& sums);
  /// Batches of the next step, of all ranks together: the last one takes what is left.
  int64_t count_step_batches() const;
  /// Where the next step's batches begin for this rank.
  pipeline::FeedStart feed_start() const;
  /// How many of the run's next `num_batches` are this rank's.
  int64_t count_own(int64_t num_batches) const;
  /// One optimizer step; false if nothing could be applied.
  bool run_step(LoggedSteps& line);
  /// Writes the batches down and counts. Errors: DivergenceError when it is too often in a row.
  void refuse_step(const BadStep& step);
  /// After a step: a line of metrics, an evaluation, a checkpoint, each when it is due.
  void report(LoggedSteps& line, double seconds, const std::function<bool()>& should_stop);
  void evaluate(LoggedSteps& line, const std::function<bool()>& should_stop);
  void save();
  void write_export() const;
  /// Whether a line of metrics is written after this step.
  bool is_logged(int64_t step) const {
    return step % settings_.log_every == 0 || step == total_steps() || is_evaluated(step);
  }
  bool is_evaluated(int64_t step) const {
    return held_out_ && (step == total_steps() || step % settings_.eval_every == 0);
  }
  bool is_past_end(const data::DataCursor& cursor) const;
  int64_t count_total_steps(const data::DataCursor& first) const;
  void log_sources() const;

  const model::Target& target_;
  model::Drafter drafter_;
  torch::Tensor lm_head_;  // [V, D] in the drafter's dtype
  data::BatchSource source_;
  std::optional<data::BatchSource> held_out_;
  std::unique_ptr<pipeline::BatchFeed> feed_;
  BatchMaker make_batch_;  // for evaluations
  pipeline::Ranks ranks_;
  LossSettings loss_;
  model::ForwardPlan plan_;
  std::unique_ptr<StepGraphs> graphs_;  // if steps are recorded
  int64_t tree_budget_ = 0;
  TrainSettings settings_;
  AdamW optimizer_;
  Schedule schedule_;
  TrainProgress progress_;
  RunStamp stamp_;
  CheckpointWriter writer_;
  std::optional<RunLog> log_;  // of the first rank
  int64_t saved_step_ = -1;    // of the newest checkpoint
  int64_t failed_in_a_row_ = 0;
};

}  // namespace draftsmith::train
