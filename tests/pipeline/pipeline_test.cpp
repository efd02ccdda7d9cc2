// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/pipeline.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "draftsmith/base/random.h"
#include "draftsmith/base/stopwatch.h"

namespace draftsmith::pipeline {
namespace {

/// Sleeps up to a millisecond, differently for each number and seed.
void doze(int64_t number, uint64_t seed) {
  const uint64_t key = hash_key({seed, static_cast<uint64_t>(number)});
  std::this_thread::sleep_for(std::chrono::microseconds(key % 1000));
}

data::SourceBatch load_number(int64_t number) {
  data::SourceBatch batch;
  batch.at = {0, number};
  return batch;
}

/// A target that takes a while and notes its worker in `source`.
TargetWorker dozing_target(int64_t worker, uint64_t seed) {
  return {.run = [worker, seed](data::SourceBatch batch) {
    doze(batch.at.batch, seed);
    TrainBatch made;
    made.at = batch.at;
    made.source = worker;
    return made;
  }};
}

std::vector<TargetWorker> dozing_targets(int64_t count, uint64_t seed) {
  std::vector<TargetWorker> targets;
  for (int64_t i = 0; i < count; ++i)
    targets.push_back(dozing_target(i, seed));
  return targets;
}

std::string message_of_next(BatchFeed& feed) {
  try {
    while (feed.next()) {
    }
  } catch (const std::exception& error) {
    return error.what();
  }
  return "closed";
}

TEST(Pipeline, GivesEachOfThreeDraftersItsBatchesInOrderWhateverTheTiming) {
  constexpr int64_t kFirst = 7, kBatches = 60;
  for (const uint64_t seed : {1, 2}) {
    Pipeline pipeline(
        {.first_number = kFirst, .ranks = 3, .share = {0, 3, 3}}, load_number,
        dozing_targets(5, seed));
    std::vector<std::vector<TrainBatch>> got(3);
    {
      std::vector<std::jthread> drafters;
      for (int64_t rank = 0; rank < 3; ++rank) {
        drafters.emplace_back([&, rank] {
          const auto feed = pipeline.feed(rank);
          for (int64_t i = 0; i < kBatches; ++i) {
            got[static_cast<size_t>(rank)].push_back(feed->next().value());
            doze(i, seed + 10 + static_cast<uint64_t>(rank));
          }
        });
      }
    }
    for (int64_t rank = 0; rank < 3; ++rank) {
      int64_t number = kFirst + (rank - kFirst % 3 + 3) % 3;
      for (const auto& batch : got[static_cast<size_t>(rank)]) {
        EXPECT_EQ(batch.number, number);
        EXPECT_EQ(batch.at.batch, number);
        EXPECT_EQ(batch.source, number % 5) << "who makes a batch follows from its number";
        number += 3;
      }
    }
  }
}

TEST(Pipeline, MakesOnlyTheBatchesOfItsShare) {
  // The second of two processes that run targets for three drafters: the odd numbers.
  Pipeline pipeline(
      {.ranks = 3, .share = {.first = 1, .count = 1, .of = 2}}, load_number, dozing_targets(2, 3));
  for (int64_t rank = 0; rank < 3; ++rank) {
    const auto feed = pipeline.feed(rank);
    for (int64_t number = rank % 2 == 1 ? rank : rank + 3; number < 20; number += 6) {
      const auto batch = feed->next().value();
      EXPECT_EQ(batch.number, number);
      EXPECT_EQ(batch.source, number / 2 % 2);
    }
  }
}

TEST(Pipeline, RunsNoFurtherAheadThanItsQueues) {
  std::atomic<int64_t> num_loaded = 0;
  Pipeline pipeline(
      {.queue_batches = 2},
      [&](int64_t number) {
        ++num_loaded;
        return load_number(number);
      },
      dozing_targets(2, 4));
  const auto feed = pipeline.feed(0);
  for (int64_t taken = 1; taken <= 20; ++taken) {
    feed->next();
    // In the hands of the loader and of each target, before the targets, before the drafter.
    EXPECT_LE(num_loaded, taken + 1 + 2 + 2 * 2 + 2);
  }
}

TEST(Pipeline, BringsTheErrorOfTheLoaderToEveryDrafter) {
  const auto load = [](int64_t number) {
    if (number == 9) throw std::runtime_error("row 9 is damaged");
    return load_number(number);
  };
  Pipeline pipeline({.ranks = 2, .share = {0, 2, 2}}, load, dozing_targets(3, 5));
  const auto first = pipeline.feed(0), second = pipeline.feed(1);
  EXPECT_EQ(message_of_next(*first), "row 9 is damaged");
  EXPECT_EQ(message_of_next(*second), "row 9 is damaged");
}

TEST(Pipeline, BringsTheErrorOfATargetWhileAllOthersWait) {
  auto targets = dozing_targets(3, 6);
  targets[1].run = [](data::SourceBatch batch) -> TrainBatch {
    if (batch.at.batch == 4) throw std::runtime_error("no memory for batch 4");
    return dozing_target(1, 6).run(batch);
  };
  Pipeline pipeline({.ranks = 1}, load_number, std::move(targets));
  const auto feed = pipeline.feed(0);
  EXPECT_EQ(message_of_next(*feed), "no memory for batch 4");
}

TEST(Pipeline, BringsTheErrorOfAWarmUp) {
  auto targets = dozing_targets(2, 7);
  targets[0].warm_up = [] { throw std::runtime_error("the device is gone"); };
  Pipeline pipeline({}, load_number, std::move(targets));
  EXPECT_EQ(message_of_next(*pipeline.feed(0)), "the device is gone");
}

TEST(Pipeline, TellsOtherDraftersOfTheErrorOfOne) {
  Pipeline pipeline({.ranks = 3, .share = {0, 3, 3}}, load_number, dozing_targets(5, 8));
  std::vector<std::string> messages(3);
  {
    std::vector<std::jthread> drafters;
    for (int64_t rank = 0; rank < 3; ++rank) {
      drafters.emplace_back([&, rank] {
        const auto feed = pipeline.feed(rank);
        for (int64_t i = 0; rank == 1 && i < 6; ++i)
          feed->next();
        if (rank == 1) pipeline.abort(std::make_exception_ptr(std::runtime_error("rank 1 died")));
        messages[static_cast<size_t>(rank)] = message_of_next(*feed);
      });
    }
  }
  for (const auto& message : messages)
    EXPECT_EQ(message, "rank 1 died");
}

TEST(Pipeline, EndsAllThreadsAtAnyTime) {
  // Threads hold the token: when it is alone again, all of them have ended.
  const auto token = std::make_shared<int>(0);
  const Stopwatch watch;
  for (int64_t taken = 0; taken < 12; ++taken) {
    auto targets = dozing_targets(5, static_cast<uint64_t>(taken));
    for (auto& target : targets)
      target.warm_up = [token] {};
    Pipeline pipeline(
        {.ranks = 3, .share = {0, 3, 3}}, [token](int64_t number) { return load_number(number); },
        std::move(targets));
    // In turn: a drafter that takes none holds up the others.
    for (int64_t i = 0; i < taken; ++i)
      EXPECT_EQ(pipeline.feed(i % 3)->next().value().number, i);
  }
  EXPECT_EQ(token.use_count(), 1);
  EXPECT_LT(watch.seconds(), 12) << "each must end within a second";
}

TEST(Pipeline, EndsWaitingDraftersWhenItIsAborted) {
  Pipeline pipeline({}, load_number, dozing_targets(1, 9));
  std::string message;
  {
    std::jthread drafter([&] { message = message_of_next(*pipeline.feed(0)); });
    pipeline.abort();
  }
  EXPECT_EQ(message, "closed");
}

TEST(Pipeline, NamesEveryWorkerAndKnowsWhoWaits) {
  auto targets = dozing_targets(2, 1);
  for (auto& target : targets)
    target.run = [](const data::SourceBatch&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      return TrainBatch{};
    };
  Pipeline pipeline({}, load_number, std::move(targets));
  const auto feed = pipeline.feed(0);
  for (int i = 0; i < 10; ++i)
    feed->next();
  const auto times = feed->take_times();
  ASSERT_EQ(times.size(), 4U);
  EXPECT_EQ(times[0].worker, "loader");
  EXPECT_EQ(times[1].worker, "target 0");
  EXPECT_EQ(times[2].worker, "target 1");
  EXPECT_EQ(times[3].worker, "drafter 0");
  EXPECT_GT(times[0].time.waiting_share(), 0.5);  // it has nothing to do
  EXPECT_GT(times[3].time.waiting_share(), 0.5);  // it has nothing to do but wait
  EXPECT_LT(times[1].time.waiting_share(), 0.5);
  EXPECT_GE(pipeline.stage_seconds().target, 0.02);
  EXPECT_LT(pipeline.stage_seconds().drafter, 0.02);
}

TEST(Pipeline, TellsWaitingForOtherDraftersFromWorkAndFromWhatTheExchangeTakes) {
  // Ranks 2 and 3 of 4 live here. One of them comes 30 ms late to the meeting, which takes 10 ms.
  constexpr std::chrono::milliseconds kLate{30}, kExchange{10};
  Pipeline pipeline({.ranks = 4, .share = {2, 2, 4}}, load_number, dozing_targets(1, 1));
  const auto late = pipeline.feed(2), early = pipeline.feed(3);
  for (int i = 0; i < 3; ++i) {
    late->next();
    early->next();
    early->begin_meeting();
    std::this_thread::sleep_for(kLate);
    late->begin_meeting();
    std::this_thread::sleep_for(kExchange);
    for (const auto& feed : {late.get(), early.get()}) {
      feed->end_meeting();
      feed->rest();
    }
  }
  const auto seconds = pipeline.stage_seconds();
  EXPECT_GE(seconds.drafter, (0.030 + 0) / 2 + 0.010);
  EXPECT_TRUE(early->take_times().empty()) << "the first feed answers for all of a process";
  const auto times = late->take_times();
  ASSERT_EQ(times.size(), 4U);
  EXPECT_EQ(times[0].worker, "loader beside drafter 2");
  EXPECT_EQ(times[1].worker, "target 0 beside drafter 2");
  EXPECT_EQ(times[2].worker, "drafter 2");
  EXPECT_EQ(times[3].worker, "drafter 3");
  EXPECT_GE(times[2].time.meeting, 3 * 0.010);
  EXPECT_GE(times[3].time.meeting, 3 * 0.040);
  EXPECT_GT(times[3].time.meeting, times[2].time.meeting);
  EXPECT_GE(times[2].time.working, 3 * 0.030);
}

TEST(Pipeline, ShowsTheTimeOfATargetThatIsElsewhere) {
  std::vector<TargetWorker> targets(1);
  targets[0].run = [](const data::SourceBatch&) {
    TrainBatch made;
    made.times.elsewhere = WorkTime{.working = 3, .waiting = 1, .batches = 1};
    return made;
  };
  targets[0].is_elsewhere = true;
  Pipeline pipeline({}, load_number, std::move(targets));
  const auto feed = pipeline.feed(0);
  EXPECT_EQ(feed->next().value().times.target, 3);
  const auto times = feed->take_times();
  EXPECT_EQ(times[1].worker, "target 0");
  EXPECT_EQ(times[1].time.waiting_share(), 0.25);
  EXPECT_EQ(pipeline.stage_seconds().target, 3);
}

}  // namespace
}  // namespace draftsmith::pipeline
