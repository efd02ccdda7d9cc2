// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/trainer.h"

#include <fmt/format.h>

#include <cmath>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"
#include "draftsmith/base/log.h"
#include "draftsmith/base/progress.h"
#include "draftsmith/base/stopwatch.h"
#include "draftsmith/memory/device_memory.h"
#include "draftsmith/memory/stage.h"
#include "draftsmith/pipeline/blank_batch.h"
#include "draftsmith/pipeline/handoff.h"
#include "draftsmith/train/agreement.h"
#include "draftsmith/train/checkpoint_list.h"
#include "draftsmith/train/step_trace.h"

namespace draftsmith::train {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kMaxFailuresInARow = 10;
constexpr int64_t kBlankBlocks = 4;  // of a batch that only starts threads and libraries

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
      .clip_norm = settings.clip_norm,
      .shards_state = settings.shard_optimizer,
      .splits_masters = settings.split_masters};
}

bool is_finite(const model::Drafter& drafter) {
  for (const auto& [name, tensor] : drafter.parameters())
    if (!tensor.detach().isfinite().all().item<bool>()) return false;
  return true;
}

}  // namespace

Trainer::Trainer(
    const model::Target& target,
    model::Drafter drafter,
    data::BatchSource source,
    const LossSettings& loss,
    const TrainSettings& settings,
    RunStamp stamp,
    pipeline::Ranks ranks)
    : target_(target),
      drafter_(std::move(drafter)),
      lm_head_(target.lm_head().to(drafter_.device(), drafter_.dtype())),
      source_(std::move(source)),
      ranks_(std::move(ranks)),
      loss_(loss),
      settings_(settings),
      optimizer_(drafter_.parameters(), make_adamw_settings(settings), ranks_),
      stamp_(std::move(stamp)),
      writer_(settings.out, settings.keep_last) {
  stamp_.ranks = ranks_.size();
  schedule_.kind = settings.schedule;
  schedule_.peak = settings.lr;
  schedule_.total_steps = count_total_steps({});
  schedule_.warmup_steps =
      std::llround(settings.warmup * static_cast<double>(schedule_.total_steps));
}

int64_t Trainer::count_total_steps(const data::DataCursor& first) const {
  if (settings_.max_steps > 0) return settings_.max_steps;
  // Whole epochs are counted exactly; a broken last one takes its share of the batches.
  double batches = static_cast<double>(-first.batch);
  for (int64_t epoch = first.epoch; static_cast<double>(epoch) < settings_.epochs; ++epoch) {
    const double share = std::min(1.0, settings_.epochs - static_cast<double>(epoch));
    batches += share * static_cast<double>(source_.batches_of_epoch(epoch));
  }
  const double steps = batches / static_cast<double>(ranks_.size() * settings_.accumulation);
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(steps - 1e-9)));
}

void Trainer::resume(const fs::path& checkpoint) {
  progress_ = read_progress(checkpoint);
  const auto saved = formats::SafetensorsReader::open_file(checkpoint / "model.safetensors");
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : drafter_.parameters())
    tensor.copy_(saved.tensor(name, tensor.sizes()));
  load_optimizer(checkpoint, optimizer_);
  saved_step_ = progress_.step;
  const int64_t saved_ranks = read_stamp(checkpoint).ranks;
  if (saved_ranks != ranks_.size() && settings_.max_steps == 0) {
    // Steps of another size: what is left of the data makes another number of them.
    schedule_.total_steps = progress_.step + count_total_steps(progress_.cursor);
    schedule_.warmup_steps =
        std::llround(settings_.warmup * static_cast<double>(schedule_.total_steps));
  }
  if (!ranks_.is_first()) return;
  if (saved_ranks != ranks_.size()) {
    log_info(
        "{} ranks go on with what {} began: a step takes {} batches, and the run ends after {}",
        ranks_.size(), saved_ranks, ranks_.size() * settings_.accumulation, schedule_.total_steps);
  }
  // A process that died between a save and the link's change left the link behind.
  const int64_t best = progress_.best.step;
  if (best >= 0 && fs::exists(checkpoint_path(settings_.out, best)))
    point_best_to(settings_.out, best);
  log_info("resumed from {} at step {}", checkpoint.string(), progress_.step);
}

void Trainer::use_recorder(std::unique_ptr<ops::Recorder> recorder) {
  graphs_ = std::make_unique<StepGraphs>(drafter_, plan_, std::move(recorder));
}

pipeline::BatchRecipe Trainer::recipe() const {
  return {
      drafter_.block_rule(loss_.block_decay()), drafter_.config().target_layer_ids,
      drafter_.dtype(), pipeline::choose_batch_shapes(source_), drafter_.device()};
}

void Trainer::warm_up() {
  const memory::Stage stage("the warm-up");
  const auto recipe = this->recipe();
  const auto run = [&](int64_t tokens, int64_t blocks) {
    const auto batch = pipeline::make_blank_batch(target_, recipe, tokens, blocks);
    run_micro_step(
        drafter_, lm_head_, batch, loss_, true, plan_, /*tree_budget=*/0, {}, graphs_.get());
  };
  if (recipe.shapes.empty())  // no more than a batch of the run: memory was planned for those
    return run(
        std::min(pipeline::kBlankTokens, source_.most_batch_tokens()),
        std::min(kBlankBlocks, source_.settings().num_anchors));
  // The largest first: what it leaves in the allocator serves the others. On the host they would
  // find nothing to do, and take their time.
  const bool runs_all = graphs_ != nullptr || !drafter_.device().is_cpu();
  for (size_t t = recipe.shapes.tokens.size(); t-- > 0;)
    for (size_t b = recipe.shapes.blocks.size(); b-- > 0;) {
      run(recipe.shapes.tokens[t], recipe.shapes.blocks[b]);
      if (!runs_all) return;
    }
}

bool Trainer::is_past_end(const data::DataCursor& cursor) const {
  return settings_.max_steps == 0 && static_cast<double>(cursor.epoch) + 1 >= settings_.epochs &&
         cursor.batch >= source_.batches_of_epoch(cursor.epoch);
}

int64_t Trainer::count_step_batches() const {
  const int64_t most = ranks_.size() * settings_.accumulation;
  int64_t count = 1;
  for (auto cursor = source_.advance(progress_.cursor, 1); count < most && !is_past_end(cursor);
       ++count)
    cursor = source_.advance(cursor, 1);
  return count;
}

pipeline::FeedStart Trainer::feed_start() const {
  return {
      .cursor = progress_.cursor,
      .number = progress_.batches,
      .rank = ranks_.rank(),
      .ranks = ranks_.size()};
}

int64_t Trainer::count_own(int64_t num_batches) const {
  const int64_t left = progress_.batches + num_batches - feed_start().first_number();
  return left <= 0 ? 0 : (left - 1) / ranks_.size() + 1;
}

void Trainer::run_micro_steps(BadStep& step, int64_t num_batches, std::vector<MetricSums>& sums) {
  // Trees take time, so only the steps that a line is written after count them.
  const int64_t tree_budget = is_logged(progress_.step + 1) ? tree_budget_ : 0;
  // Alone there is nobody to send gradients to while backward goes on.
  GradientSink sink;
  if (ranks_.size() > 1)
    sink = [this](size_t parameter, const torch::Tensor& gradient) {
      optimizer_.add_gradient(parameter, gradient);
    };
  for (int64_t left = count_own(num_batches); left > 0; --left) {
    const auto fed = feed_->next();
    DS_CHECK(
        fed && fed->number >= progress_.batches && fed->number < progress_.batches + num_batches);
    const auto& batch = *fed;
    sums[0].times.data += batch.times.data;
    sums[0].times.target += batch.times.target;
    if (step.batches.empty()) step.first_batch = batch.number;
    step.batches.emplace_back(batch.at, batch.tokens);
    if (left == 1) optimizer_.begin_last_micro_step();
    const MicroStep micro = run_micro_step(
        drafter_, lm_head_, batch, loss_, true, plan_, tree_budget, sink, graphs_.get());
    if (!micro.gradients.empty()) optimizer_.accumulate(micro.gradients);
    sums[0] += micro.sums;
    sums[1 + static_cast<size_t>(batch.source)] += micro.sums;
  }
}

bool Trainer::run_step(LoggedSteps& line) {
  const memory::Stage stage("step");
  BadStep step{
      .weights_step = progress_.step,
      .first_batch = progress_.batches,
      .seed = source_.settings().seed};
  std::vector<MetricSums> all_sums(1 + source_.source_names().size());
  const int64_t num_batches = count_step_batches();
  std::exception_ptr failure;
  try {
    run_micro_steps(step, num_batches, all_sums);
  } catch (const std::exception&) {
    failure = std::current_exception();  // the others are on their way to the sums
  }
  Stopwatch watch;
  feed_->begin_meeting();
  optimizer_.reduce_gradients();
  all_sums[0].times.exchange += watch.seconds();
  sum_over_ranks(ranks_, all_sums, drafter_.config().block_size, failure);
  feed_->end_meeting();
  watch.restart();
  progress_.cursor = source_.advance(progress_.cursor, num_batches);
  progress_.batches += num_batches;
  MetricSums sums = all_sums[0];
  const std::vector<MetricSums> by_source(all_sums.begin() + 1, all_sums.end());
  if (sums.weight_sum == 0) return false;

  // One denominator for all micro-steps and ranks: a mean of means would weigh short answers more.
  const double scale = 1 / sums.weight_sum;
  const double norm = optimizer_.gradient_norm(scale);
  sums.times.backward += watch.restart();  // the norm waits until a GPU has run it
  if (!std::isfinite(norm) || !std::isfinite(sums.loss_sum)) {
    step.loss = sums.loss();
    step.gradient_norm = norm;
    refuse_step(step);
    return false;
  }
  failed_in_a_row_ = 0;
  line.lr = schedule_.lr(progress_.step);
  line.gradient_norm = norm;
  {
    const memory::Stage stage("the optimizer's update");
    optimizer_.step(line.lr, scale, norm);
  }
  sums.times.optimizer += watch.seconds();
  ++progress_.step;
  progress_.tokens += sums.tokens;
  line.step = progress_.step;
  ++line.steps;
  line.sums += sums;
  if (by_source.size() > 1) {
    line.by_source.resize(by_source.size());
    for (size_t i = 0; i < by_source.size(); ++i)
      line.by_source[i] += by_source[i];
  }
  return true;
}

void Trainer::refuse_step(const BadStep& step) {
  optimizer_.clear_gradients();
  if (!step.batches.empty()) {  // each rank writes down its own
    const fs::path file = write_bad_step(settings_.out, step);
    log_warning(fmt::format(
        "step {}: loss {} and gradient norm {}: the step is not applied; --replay {} runs its "
        "batches alone",
        step.weights_step + 1, step.loss, step.gradient_norm, file.string()));
  }
  ++failed_in_a_row_;
  // The weights that the batches failed with, for the replay.
  if (failed_in_a_row_ == 1 && saved_step_ != progress_.step && is_finite(drafter_)) save();
  if (failed_in_a_row_ < kMaxFailuresInARow) return;
  throw DivergenceError(
      {.what = "training",
       .expected = "finite losses and gradients",
       .got = fmt::format("{} steps in a row without", failed_in_a_row_),
       .where = settings_.out,
       .hint = "a smaller train.lr"});
}

void Trainer::evaluate(LoggedSteps& line, const std::function<bool()>& should_stop) {
  const memory::Stage stage("evaluation");
  const auto make = [&](data::SourceBatch batch) {
    auto made = make_batch_ ? make_batch_(std::move(batch))
                            : pipeline::make_train_batch(
                                  target_, std::move(batch), drafter_.config().target_layer_ids,
                                  drafter_.dtype());
    pipeline::move_batch(made, drafter_.device());
    return made;
  };
  line.evaluation = evaluate_held_out(
      make, drafter_, lm_head_, *held_out_, loss_, {plan_, tree_budget_, should_stop}, ranks_);
  if (!line.evaluation) {
    if (ranks_.is_first()) log_info("step {}: evaluation left unfinished, to stop", progress_.step);
    return;
  }
  const bool has_trees = settings_.eval_method == "tree";
  DS_CHECK(!has_trees || tree_budget_ > 0);  // TrainSettings::check
  const double acceptance = has_trees ? line.evaluation->tree_expected_acceptance()
                                      : line.evaluation->expected_acceptance();
  const bool is_best = progress_.best.step < 0 || acceptance > progress_.best.acceptance;
  if (is_best) progress_.best = {progress_.step, acceptance};
  if (!ranks_.is_first()) return;
  log_info(
      "step {}: held out loss {:.3f}  accuracy {:.1f} %  expected acceptance {:.3f}{}{}",
      progress_.step, line.evaluation->loss(), 100 * line.evaluation->accuracy(), acceptance,
      has_trees ? fmt::format(" of trees of {}", tree_budget_) : "",
      is_best ? ", the best so far" : "");
}

void Trainer::save() {
  auto state = optimizer_.state();  // of all ranks
  saved_step_ = progress_.step;
  if (ranks_.is_first()) writer_.save({drafter_, std::move(state), progress_, schedule_, stamp_});
}

void Trainer::write_export() const {
  StagedFolder exported(fs::path(settings_.out) / "export");
  drafter_.save(exported.path(), torch::kBFloat16);
  exported.publish();
}

void Trainer::report(LoggedSteps& line, double seconds, const std::function<bool()>& should_stop) {
  const int64_t step = progress_.step;
  const bool is_due = is_evaluated(step) || is_logged(step) || step % settings_.save_every == 0;
  if (is_due) feed_->rest();
  if (is_evaluated(step)) evaluate(line, should_stop);
  if (is_logged(step)) {
    line.seconds = seconds;
    line.peak_bytes = memory::peak_bytes(drafter_.device());
    line.workers = gather_times(ranks_, feed_->take_times());
    if (log_) log_->write(line);
  }
  if (step % settings_.save_every == 0 || progress_.best.step == step) save();
}

bool Trainer::run(const std::function<bool()>& should_stop) {
  // Asked by all: a sharded state is gathered.
  const int64_t needed = needed_bytes(drafter_, optimizer_, settings_.keep_last);
  if (ranks_.is_first()) {
    check_room(settings_.out, needed);
    log_.emplace(settings_.out, progress_.step);
  }
  if (!feed_)
    feed_ =
        std::make_unique<pipeline::InlineFeed>(target_, source_.share(), recipe(), feed_start());
  const int64_t total = total_steps();
  if (progress_.step < total) warm_up();
  feed_->take_times();  // of the time before the first step
  StepTrace trace(
      fs::path(settings_.out) / "trace.json", ranks_.is_first() ? settings_.profile_steps : 0);
  std::optional<Progress> bar;
  if (ranks_.is_first()) bar.emplace("training", total, "steps", progress_.step);
  LoggedSteps line;
  MetricSums shown;  // of the last line, for the progress bar
  Stopwatch since_line;
  const Stopwatch since_start;
  const double seconds_before = progress_.seconds;
  while (progress_.step < total && !ranks_.any(should_stop())) {
    writer_.check();
    const bool is_applied = run_step(line);
    trace.end_step();
    if (!is_applied) continue;
    progress_.seconds = seconds_before + since_start.seconds();
    if (shown.blocks == 0) shown = line.sums;
    if (bar) {
      bar->update(
          progress_.step,
          fmt::format(
              "loss {:.3f}  expected acceptance {:.2f}  {} tokens/s  accuracy {:.1f} %",
              shown.loss(), shown.expected_acceptance(),
              format_count(static_cast<double>(progress_.tokens) / progress_.seconds),
              100 * shown.accuracy()));
    }
    report(line, since_line.seconds(), should_stop);
    if (line.seconds > 0) {  // it was written
      shown = line.sums;
      line = {};
      since_line.restart();
    }
  }
  if (bar)
    bar->finish(fmt::format(
        "loss {:.3f}  expected acceptance {:.2f}", shown.loss(), shown.expected_acceptance()));
  if (saved_step_ != progress_.step) save();
  writer_.wait();
  const bool is_done = progress_.step >= total;
  if (is_done && ranks_.is_first()) {
    write_export();
    const auto counts = source_.report(progress_.cursor);
    log_info(
        "sequences: {} read = {} trained + {} not reached + {} too long + {} without trainable "
        "tokens + {} held out",
        counts.read, counts.trained, source_.report().trained - counts.trained, counts.too_long,
        counts.no_anchor, counts.held_out);
    log_sources();
  }
  ranks_.any(false);  // all end together, or with the error of the one that could not
  return is_done;
}

void Trainer::log_sources() const {
  const auto shares = source_.shares(progress_.cursor);
  if (shares.size() == 1) return;
  for (const auto& share : shares)
    log_info(
        "mixture: {:.1f} % of the batches planned, {:.1f} % seen ({} batches): {}",
        100 * share.planned, 100 * share.seen, share.batches, share.path);
}

}  // namespace draftsmith::train
