// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/app/train_workers.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>

#include "draftsmith/app/resume.h"
#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"
#include "draftsmith/base/log.h"
#include "draftsmith/base/stop_signal.h"
#include "draftsmith/memory/stage.h"
#include "draftsmith/ops/cuda/graph.h"
#include "draftsmith/pipeline/remote_target.h"
#include "draftsmith/pipeline/target_states.h"
#include "draftsmith/pipeline/workers.h"

namespace draftsmith::app {
namespace {

/// The error that ended a run: that of the thread where something was wrong, rather than those of
/// threads that ended because of it.
class FirstError {
 public:
  void note(std::exception_ptr error, bool is_consequence) {
    const std::lock_guard lock(mutex_);
    if (error_ && (!is_consequence_ || is_consequence)) return;
    error_ = std::move(error);
    is_consequence_ = is_consequence;
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }
  bool is_set() const { return error_ != nullptr; }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
  bool is_consequence_ = false;
};

/// Runs `body` in a thread for each number below `count`, or here if that is one. `body` is given
/// the ranks to fill in, so that the others are told of its error.
void run_threads(
    int64_t count,
    FirstError& first_error,
    const std::function<void(int64_t, pipeline::Ranks&)>& body,
    const std::function<void(std::exception_ptr)>& on_error = {}) {
  const auto guarded = [&](int64_t index) {
    pipeline::Ranks ranks;
    try {
      body(index, ranks);
    } catch (const std::exception& error) {
      const bool is_consequence = dynamic_cast<const pipeline::RankEnded*>(&error) != nullptr;
      first_error.note(std::current_exception(), is_consequence);
      ranks.announce_end(error.what());
      if (on_error) on_error(std::current_exception());
    }
    ranks.leave();
  };
  if (count == 1) {
    guarded(0);
    return;
  }
  const int threads = std::max(1, at::get_num_threads() / static_cast<int>(count));
  std::vector<std::jthread> workers;
  for (int64_t i = 0; i < count; ++i)
    workers.emplace_back([&guarded, threads, i] {
      at::set_num_threads(threads);
      guarded(i);
    });
}

/// The drafters of one process.
class DrafterThreads {
 public:
  explicit DrafterThreads(TrainJob job)
      : job_(std::move(job)),
        recipe_{
            job_.drafter.block_rule(job_.loss.block_decay()),
            job_.drafter.config().target_layer_ids, job_.drafter.dtype(),
            pipeline::choose_batch_shapes(job_.source)} {
    for (const auto& name : job_.config.pipeline.name_drafter_devices(job_.config.target))
      devices_.push_back(model::parse_device(name, "pipeline.drafter_devices"));
  }

  TrainOutcome run() {
    const auto& seats = job_.seats;
    FirstError error;
    if (seats.is_split()) {
      links_ = seats.join_links();
      servers_ = seats.list_link_servers();
    }
    const StopSignals signals;
    // The first one trains the tensors themselves, if it can; each other one has its own.
    for (const auto device : devices_) {
      const bool is_in_place = drafters_.empty() && device == job_.drafter.device();
      drafters_.push_back(is_in_place ? job_.drafter : job_.drafter.copy_to(device));
    }
    start_pipeline();
    run_threads(
        seats.num_drafters(), error,
        [&](int64_t index, pipeline::Ranks& ranks) {
          ranks = seats.join_drafters(index);
          train(index, ranks, signals);
        },
        [&](std::exception_ptr cause) {
          if (pipeline_) pipeline_->abort(std::move(cause));  // a drafter may wait for a batch
        });
    if (bottleneck_ && !error.is_set()) log_info("{}", *bottleneck_);
    pipeline_.reset();  // its threads use the links
    say_goodbye(error.is_set());
    error.rethrow();
    return outcome_;
  }

 private:
  void start_pipeline() {
    const auto& settings = job_.config.pipeline;
    const auto& seats = job_.seats;
    if (!seats.is_split() && settings.target_workers == 0) return;
    if (!seats.is_split() && job_.plan.shape.waiting_batches == 0) {
      log_warning(
          "memory has no room for batches made ahead: the target runs in turn with the drafter");
      return;
    }
    train::TrainProgress progress;
    if (job_.checkpoint) progress = train::read_progress(*job_.checkpoint);
    const pipeline::FeedStart start{.cursor = progress.cursor, .number = progress.batches};
    const pipeline::PipelineShape shape{
        .first_number = start.number,
        .ranks = seats.num_ranks(),
        .share = {seats.first_rank(), seats.num_drafters(), seats.num_ranks()},
        .queue_batches = settings.queue_batches};
    pipeline_ = std::make_unique<pipeline::Pipeline>(
        shape, pipeline::make_loader(job_.source.share(), recipe_, start), make_workers());
  }

  std::vector<pipeline::TargetWorker> make_workers() const {
    std::vector<pipeline::TargetWorker> workers;
    if (!job_.seats.is_split()) {
      for (int64_t i = 0; i < job_.config.pipeline.target_workers; ++i) {
        const auto& target = *job_.targets.at(static_cast<size_t>(i));
        workers.push_back(pipeline::make_target_worker(target, recipe_));
        hand_over_to(workers.back(), target.lm_head().device(), list_rank_devices());
      }
      return workers;
    }
    for (size_t i = 0; i < servers_.size(); ++i) {
      const auto make = make_remotely(servers_[i], 1 + static_cast<int64_t>(i));
      workers.push_back(
          {.run =
               [make, shapes = recipe_.shapes](data::SourceBatch batch) {
                 auto made = make(std::move(batch));
                 pipeline::pad_to_shape(made, shapes);
                 return made;
               },
           .is_elsewhere = true});
      hand_over_to(workers.back(), torch::kCPU, list_rank_devices());
    }
    return workers;
  }

  /// The device of each rank, as far as this process has any business with it.
  std::vector<torch::Device> list_rank_devices() const {
    auto devices = devices_;
    devices.insert(devices.begin(), static_cast<size_t>(job_.seats.first_rank()), devices.front());
    return devices;
  }

  /// Batches whose states come from a target elsewhere; each thread has a tag of its own.
  train::BatchMaker make_remotely(int64_t server, int64_t tag) const {
    const pipeline::RemoteTarget remote(links_, server, tag);
    return [remote, &target = target(), recipe = recipe_](data::SourceBatch batch) {
      return remote.make_train_batch(
          target, std::move(batch), recipe.target_layer_ids, recipe.drafter_dtype);
    };
  }

  void train(int64_t index, const pipeline::Ranks& ranks, const StopSignals& signals) {
    const auto& config = job_.config;
    const c10::DeviceGuard guard(devices_[static_cast<size_t>(index)]);
    model::Drafter drafter = drafters_[static_cast<size_t>(index)];  // shares its tensors
    // First weights are computed, and two machines may round differently.
    for (const auto& [name, weight] : drafter.parameters())
      ranks.broadcast(weight);
    auto trainer = [&] {
      const memory::Stage stage("the state of the run");
      return train::Trainer(
          target(), std::move(drafter), job_.source.share(), job_.loss, config.train, job_.stamp,
          ranks);
    }();
    trainer.use_plan(
        {model::parse_attention_method(config.attention.method),
         job_.plan.shape.recomputes_layers});
    if (config.pipeline.cuda_graphs) trainer.use_recorder(make_recorder(index));
    trainer.count_trees_of(config.eval.tree_budget);
    if (job_.held_out) trainer.evaluate_on(job_.held_out->share());
    if (!servers_.empty()) {
      const auto count = static_cast<int64_t>(servers_.size());
      trainer.use_batch_maker(
          make_remotely(servers_[static_cast<size_t>(ranks.rank() % count)], 1 + count + index));
    }
    if (job_.checkpoint) {
      const auto saved = train::read_stamp(*job_.checkpoint);
      if (ranks.is_first()) {
        if (saved.ranks == ranks.size())
          check_resumed_steps(
              train::read_schedule(*job_.checkpoint).total_steps, trainer.total_steps(),
              job_.allow_change);
        write_file_atomically(
            std::filesystem::path(config.train.out) / "settings.toml", job_.settings);
      }
      trainer.resume(*job_.checkpoint);
    }
    if (pipeline_) trainer.use_feed(pipeline_->feed(ranks.rank()));
    const bool is_done = trainer.run([&] { return signals.is_requested(); });
    if (index == 0) outcome_ = {is_done, trainer.progress().step, trainer.total_steps()};
    note_bottleneck(index, ranks);
  }

  /// The first drafter of all notes it, from the rates in all processes.
  void note_bottleneck(int64_t index, const pipeline::Ranks& ranks) {
    const auto own = pipeline_ ? pipeline_->stage_seconds() : pipeline::StageSeconds{};
    const bool counts = pipeline_ && index == 0;  // each process once
    const auto targets = static_cast<double>(job_.config.pipeline.target_workers);
    const auto sums = ranks.sum(
        {counts ? 1.0 : 0.0, counts ? own.loader : 0, counts ? own.target : 0,
         counts ? own.drafter : 0, counts ? targets : 0});
    const double processes = sums[0];
    if (!ranks.is_first() || processes == 0) return;
    const bool is_split = job_.seats.is_split();
    const auto num_targets = is_split ? servers_.size() : static_cast<size_t>(sums[4]);
    bottleneck_ = pipeline::describe_bottleneck(
        // Each process has a loader, for its part of the batches.
        {sums[1] / processes / processes, sums[2] / processes, sums[3] / processes},
        {static_cast<int64_t>(num_targets), job_.seats.num_ranks()},
        !is_split && job_.config.pipeline.shares_devices(job_.config.target));
  }

  /// Errors: ConfigError for a drafter whose attention cannot be recorded.
  std::unique_ptr<ops::Recorder> make_recorder(int64_t index) const {
    const auto& drafter = drafters_[static_cast<size_t>(index)];
    const auto& config = drafter.config();
    const ops::BlockHeads heads{0, config.num_heads, config.num_kv_heads, config.head_dim};
    if (!ops::needs_plans(drafter.device(), drafter.dtype(), heads)) {
      throw ConfigError(
          {.what = "pipeline.cuda_graphs",
           .expected = "a drafter in bfloat16 with heads of 64, 128 or 256",
           .got = fmt::format(
               "one in {} with heads of {}", model::dtype_name(drafter.dtype()), config.head_dim),
           .hint = "--pipeline.cuda_graphs=false"});
    }
    return ops::cuda::make_graph_recorder(drafter.device());
  }

  void say_goodbye(bool has_failed) const {
    for (const int64_t server : servers_) {
      try {
        pipeline::RemoteTarget(links_, server, 1).say_goodbye(has_failed);
      } catch (const std::exception& error) {
        if (!has_failed) throw;  // else there is a reason already
      }
    }
  }

  const model::Target& target() const { return *job_.targets.front(); }

  TrainJob job_;
  pipeline::BatchRecipe recipe_;
  std::vector<torch::Device> devices_;  // of the drafters here
  std::vector<model::Drafter> drafters_;
  pipeline::Ranks links_;         // to targets elsewhere
  std::vector<int64_t> servers_;  // their ranks among the links
  std::unique_ptr<pipeline::Pipeline> pipeline_;
  TrainOutcome outcome_;
  std::optional<std::string> bottleneck_;
};

}  // namespace

TrainOutcome run_drafters(TrainJob job) { return DrafterThreads(std::move(job)).run(); }

void run_targets(const Seats& seats, const RunConfig& config) {
  const auto targets = pipeline::open_targets(
      config.target, config.pipeline.name_target_devices(config.target), model::Target::load);
  log_info(
      "runs the target for {} processes of drafters, in {} threads", seats.num_link_clients(),
      seats.num_targets());
  const StopSignals signals;  // the drafters' processes decide; they say goodbye
  FirstError error;
  run_threads(seats.num_targets(), error, [&](int64_t index, pipeline::Ranks& ranks) {
    const auto& target = *targets.at(static_cast<size_t>(index));
    const c10::DeviceGuard guard(target.lm_head().device());
    pipeline::make_target_worker(target, {.rule = {}, .target_layer_ids = {0}}).warm_up();
    ranks = seats.join_links(index);
    pipeline::serve_target(target, ranks, seats.num_link_clients());
  });
  error.rethrow();
}

}  // namespace draftsmith::app
