// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/pipeline.h"

#include <fmt/format.h>

#include <utility>

#include <ATen/Parallel.h>

#include "draftsmith/base/stopwatch.h"
#include "draftsmith/pipeline/handoff.h"

namespace draftsmith::pipeline {

class Pipeline::Feed final : public BatchFeed {
 public:
  Feed(Pipeline& pipeline, Drafter& drafter) : pipeline_(pipeline), drafter_(drafter) {}

  std::optional<TrainBatch> next() override {
    if (is_at_batch_) drafter_.clock.finish_batch();
    drafter_.clock.begin_wait();
    auto batch = drafter_.queue.pop();
    drafter_.clock.begin_work();
    is_at_batch_ = batch.has_value();
    if (batch) receive(*batch);
    return batch;
  }

  void rest() override {
    if (is_at_batch_) drafter_.clock.finish_batch();
    is_at_batch_ = false;
    drafter_.clock.rest();
  }

  std::vector<Waiting> take_waits() override { return pipeline_.take_waits(); }

 private:
  Pipeline& pipeline_;
  Drafter& drafter_;
  bool is_at_batch_ = false;
};

Pipeline::Pipeline(const PipelineShape& shape, LoadBatch load, std::vector<TargetWorker> targets)
    : shape_(shape),
      is_warm_(static_cast<std::ptrdiff_t>(targets.size())),
      num_compute_threads_(at::get_num_threads()) {
  DS_CHECK(!targets.empty() && shape.ranks > 0 && shape.share.count > 0);
  for (size_t i = 0; i < targets.size(); ++i)
    workers_.push_back(std::make_unique<Worker>(shape.queue_batches));
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
    worker->clock.restart();
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
  worker.clock.begin_wait();
  while (auto loaded = worker.queue.pop()) {
    worker.clock.begin_work();
    const Stopwatch watch;
    TrainBatch batch = target.run(std::move(loaded->batch));
    batch.number = loaded->number;
    batch.times = {loaded->seconds, watch.seconds()};
    const int64_t rank = loaded->number % shape_.ranks;
    if (target.hand_over) target.hand_over(batch, rank);
    auto& drafter = *drafters_[static_cast<size_t>(rank)];
    worker.clock.finish_batch();
    if (!drafter.queue.push_at(loaded->place, std::move(batch))) return;
  }
}

std::unique_ptr<BatchFeed> Pipeline::feed(int64_t rank) {
  return std::make_unique<Feed>(*this, *drafters_.at(static_cast<size_t>(rank)));
}

std::vector<Waiting> Pipeline::take_waits() {
  std::vector<Waiting> waits;
  waits.push_back({"loader", loader_clock_.take().waiting_share()});
  for (size_t i = 0; i < workers_.size(); ++i)
    waits.push_back({fmt::format("target {}", i), workers_[i]->clock.take().waiting_share()});
  for (size_t i = 0; i < drafters_.size(); ++i) {
    const WorkTime time = drafters_[i]->clock.take();
    if (time.working + time.waiting > 0)  // a drafter of another process has no time here
      waits.push_back({fmt::format("drafter {}", i), time.waiting_share()});
  }
  return waits;
}

StageSeconds Pipeline::stage_seconds() {
  const auto mean = [](const auto& members) {
    WorkTime sum;
    for (const auto& member : members) {
      const WorkTime time = member->clock.total();
      sum.working += time.working;
      sum.batches += time.batches;
    }
    return sum.batches > 0 ? sum.working / static_cast<double>(sum.batches) : 0;
  };
  const WorkTime loader = loader_clock_.total();
  const double loader_batches = static_cast<double>(loader.batches);
  return {
      loader.batches > 0 ? loader.working / loader_batches : 0, mean(workers_), mean(drafters_)};
}

}  // namespace draftsmith::pipeline
