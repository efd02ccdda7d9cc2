// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include <ATen/Parallel.h>

#include "draftsmith/base/stopwatch.h"
#include "draftsmith/pipeline/handoff.h"

namespace draftsmith::pipeline {

class Pipeline::Feed final : public BatchFeed {
 public:
  Feed(Pipeline& pipeline, Drafter& drafter) : pipeline_(pipeline), drafter_(drafter) {}

  std::optional<TrainBatch> next() override {
    finish_batch();
    drafter_.clock.begin_wait();
    auto batch = drafter_.queue.pop();
    drafter_.clock.begin_work();
    is_at_batch_ = batch.has_value();
    if (batch) stream_wait_ = receive(*batch);
    return batch;
  }

  void rest() override {
    finish_batch();
    drafter_.clock.rest();
  }

  void begin_meeting() override {
    if (pipeline_.shape_.ranks > 1) drafter_.clock.begin_meeting();
  }
  void end_meeting() override { drafter_.clock.begin_work(); }

  std::vector<WorkerTime> take_times() override {
    const auto first = static_cast<size_t>(pipeline_.shape_.share.first);
    if (&drafter_ != pipeline_.drafters_.at(first).get()) return {};
    return pipeline_.take_times();
  }

 private:
  void finish_batch() {
    if (!std::exchange(is_at_batch_, false)) return;
    // The thread has seen the batch's losses by now, so its stream has passed the wait.
    drafter_.clock.count_as_waiting(stream_wait_.seconds());
    stream_wait_ = {};
    drafter_.clock.finish_batch();
  }

  Pipeline& pipeline_;
  Drafter& drafter_;
  bool is_at_batch_ = false;
  StreamWait stream_wait_;  // for that batch
};

Pipeline::Pipeline(const PipelineShape& shape, LoadBatch load, std::vector<TargetWorker> targets)
    : shape_(shape),
      is_warm_(static_cast<std::ptrdiff_t>(targets.size())),
      num_compute_threads_(at::get_num_threads()) {
  DS_CHECK(!targets.empty() && shape.ranks > 0 && shape.share.count > 0);
  for (const auto& target : targets) {
    workers_.push_back(std::make_unique<Worker>(shape.queue_batches));
    workers_.back()->is_elsewhere = target.is_elsewhere;
  }
  for (int64_t i = 0; i < shape.ranks; ++i)
    drafters_.push_back(std::make_unique<Drafter>(shape.queue_batches));
  try {
    start([this, load = std::move(load)] { load_batches(load); });
    for (size_t i = 0; i < targets.size(); ++i)
      start([this, i, target = std::move(targets[i])] { run_target(*workers_[i], target); });
  } catch (...) {  // no more threads
    abort();
    throw;
  }
  is_warm_.wait();
  for (const auto& worker : workers_)
    worker->thread_clock.restart();
  loader_clock_.restart();
}

Pipeline::~Pipeline() {
  abort();
  threads_.clear();  // before the queues that they use
}

void Pipeline::start(std::function<void()> body) {
  threads_.emplace_back([this, body = std::move(body)] {
    try {
      body();
    } catch (...) {
      abort(std::current_exception());
    }
  });
}

void Pipeline::abort(std::exception_ptr error) {
  const std::lock_guard lock(abort_mutex_);
  for (const auto& drafter : drafters_)
    drafter->queue.abort(error);
  for (const auto& worker : workers_)
    worker->queue.abort();  // the drafters are told
}

void Pipeline::load_batches(const LoadBatch& load) {
  std::vector<int64_t> num_loaded(drafters_.size(), 0);
  for (int64_t number = shape_.first_number;; ++number) {
    if (!shape_.share.has(number)) continue;
    loader_clock_.begin_work();
    const Stopwatch watch;
    LoadedBatch loaded{.number = number, .batch = load(number)};
    loaded.seconds = watch.seconds();
    loaded.place = num_loaded[static_cast<size_t>(number % shape_.ranks)]++;
    loader_clock_.finish_batch();
    const auto worker = shape_.share.place(number) % static_cast<int64_t>(workers_.size());
    if (!workers_[static_cast<size_t>(worker)]->queue.push(std::move(loaded))) return;
  }
}

void Pipeline::run_target(Worker& worker, const TargetWorker& target) {
  // The same number in all threads: sums of float32 depend on it.
  at::set_num_threads(num_compute_threads_);
  try {
    if (target.warm_up) target.warm_up();
  } catch (...) {
    is_warm_.count_down();
    throw;
  }
  is_warm_.count_down();
  worker.thread_clock.begin_wait();
  while (auto loaded = worker.queue.pop()) {
    worker.thread_clock.begin_work();
    const Stopwatch watch;
    TrainBatch batch = target.run(std::move(loaded->batch));
    batch.number = loaded->number;
    const auto elsewhere = std::exchange(batch.times.elsewhere, std::nullopt);
    if (elsewhere) worker.elsewhere_clock.add(*elsewhere);
    batch.times = {loaded->seconds, elsewhere ? elsewhere->working : watch.seconds()};
    const int64_t rank = loaded->number % shape_.ranks;
    if (target.hand_over) target.hand_over(batch, rank);
    auto& drafter = *drafters_[static_cast<size_t>(rank)];
    worker.thread_clock.finish_batch();
    if (!drafter.queue.push_at(loaded->place, std::move(batch))) return;
  }
}

std::unique_ptr<BatchFeed> Pipeline::feed(int64_t rank) {
  return std::make_unique<Feed>(*this, *drafters_.at(static_cast<size_t>(rank)));
}

std::vector<WorkerTime> Pipeline::take_times() {
  const int64_t first = shape_.share.first;
  const std::string place = first > 0 ? fmt::format(" beside drafter {}", first) : "";
  std::vector<WorkerTime> times;
  times.push_back({"loader" + place, loader_clock_.take()});
  for (size_t i = 0; i < workers_.size(); ++i) {
    auto& worker = *workers_[i];
    times.push_back(
        {fmt::format("target {}{}", i, worker.is_elsewhere ? "" : place), worker.clock().take()});
  }
  for (size_t i = 0; i < drafters_.size(); ++i) {
    const WorkTime time = drafters_[i]->clock.take();
    // A drafter of another process has no time here.
    if (time.total() > 0) times.push_back({fmt::format("drafter {}", i), time});
  }
  return times;
}

StageSeconds Pipeline::stage_seconds() {
  const auto mean = [](const WorkTime& time) {
    return time.batches > 0 ? time.working / static_cast<double>(time.batches) : 0;
  };
  WorkTime targets, drafters;
  double least_meeting = std::numeric_limits<double>::infinity();
  for (const auto& worker : workers_)
    targets += worker->clock().total();
  for (const auto& drafter : drafters_) {
    const WorkTime time = drafter->clock.total();
    drafters += time;
    if (time.batches > 0)
      least_meeting = std::min(least_meeting, time.meeting / static_cast<double>(time.batches));
  }
  const double exchange = drafters.batches > 0 ? least_meeting : 0;
  return {mean(loader_clock_.total()), mean(targets), mean(drafters) + exchange};
}

}  // namespace draftsmith::pipeline
