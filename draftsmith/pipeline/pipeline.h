// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "draftsmith/base/bounded_queue.h"
#include "draftsmith/pipeline/batch_feed.h"
#include "draftsmith/pipeline/split.h"
#include "draftsmith/pipeline/work_clock.h"

namespace draftsmith::pipeline {

/// The batches that one process makes: the numbers g with first <= g % of < first + count. For
/// the process of local drafters these are the batches of its ranks; for one of several processes
/// that run targets for all drafters, every `of`-th.
struct BatchShare {
  int64_t first = 0;
  int64_t count = 1;
  int64_t of = 1;

  bool has(int64_t number) const { return number % of >= first && number % of < first + count; }
  /// How many of the numbers below `number` are of this share.
  int64_t place(int64_t number) const { return number / of * count + (number % of - first); }
};

/// What a pipeline hands out, and how much it holds.
struct PipelineShape {
  int64_t first_number = 0;   // of the first batch
  int64_t ranks = 1;          // drafters in all; batch g is for drafter g % ranks
  BatchShare share = {};      // batch g is made by target worker share.place(g) % workers
  int64_t queue_batches = 2;  // before each target worker, and again before each drafter
};

/// Called in the loader's thread with the numbers of the share, in order.
using LoadBatch = std::function<data::SourceBatch(int64_t number)>;

/// Both functions are called in the worker's own thread.
struct TargetWorker {
  std::function<TrainBatch(data::SourceBatch batch)> run;
  std::function<void()> warm_up = {};                                   // before the first batch
  std::function<void(TrainBatch& batch, int64_t rank)> hand_over = {};  // to a drafter's device
  bool is_elsewhere = false;  // the target is: its time comes with the batches
};

/// Threads that make batches ahead of the drafters: a loader, target workers, and between them and
/// the drafters bounded queues, which are all that ever holds a worker back.
///
///   loader -> [queue] -> target worker 0 -> [queue in the order of numbers] -> drafter 0
///          -> [queue] -> target worker 1 -> [queue in the order of numbers] -> drafter 1
///
/// Who makes a batch and who gets it follow from its number, and every drafter gets its batches in
/// order: a run does not depend on timing. An error in any thread is thrown to every drafter by its
/// next batch, and ends all threads; so does `abort` and the destructor. A worker ends after the
/// batch it is at.
class Pipeline {
 public:
  /// Returns when all workers are warm; an error of theirs comes with the first batch.
  Pipeline(const PipelineShape& shape, LoadBatch load, std::vector<TargetWorker> targets);
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;
  ~Pipeline();

  /// The batches of a drafter, for one thread; once for each rank. The pipeline must outlive it.
  std::unique_ptr<BatchFeed> feed(int64_t rank);

  /// Ends all threads soon. Drafters get `error` instead of their next batch, or nothing without.
  void abort(std::exception_ptr error = nullptr);

  /// What each worker did since the last call, by name. Names are those of the whole run: what is
  /// not in the first process is named by the first drafter beside it, and a target that several
  /// processes ask has one name in all of them.
  std::vector<WorkerTime> take_times();

  /// How long batches took, from the beginning on. Of a drafter this is its work and what all of
  /// them need to exchange gradients: the time of the one that waits least for the others.
  StageSeconds stage_seconds();

 private:
  struct LoadedBatch {
    int64_t number = 0;
    int64_t place = 0;  // among those of its drafter
    double seconds = 0;
    data::SourceBatch batch = {};
  };
  struct Worker {
    explicit Worker(int64_t capacity) : queue(capacity) {}
    BoundedQueue<LoadedBatch> queue;
    bool is_elsewhere = false;
    WorkClock thread_clock, elsewhere_clock;

    WorkClock& clock() { return is_elsewhere ? elsewhere_clock : thread_clock; }
  };
  struct Drafter {
    explicit Drafter(int64_t capacity) : queue(capacity) {}
    BoundedQueue<TrainBatch> queue;
    WorkClock clock;
  };
  class Feed;

  void start(std::function<void()> body);
  void load_batches(const LoadBatch& load);
  void run_target(Worker& worker, const TargetWorker& target);

  PipelineShape shape_;
  WorkClock loader_clock_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<Drafter>> drafters_;
  std::mutex abort_mutex_;  // one error for all queues
  std::latch is_warm_;
  int num_compute_threads_;  // of each worker
  std::vector<std::jthread> threads_;
};

}  // namespace draftsmith::pipeline
