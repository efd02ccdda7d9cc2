// SPDX-License-Identifier: Apache-2.0
// Runs that threads feed, against those in which the trainer runs the target itself.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <set>
#include <stdexcept>
#include <thread>

#include "draftsmith/base/random.h"
#include "draftsmith/pipeline/workers.h"

#include "tests/train/tiny_run.h"

namespace draftsmith::train {
namespace {

using testing::make_trainer;
using testing::RunOptions;
using testing::TempFolder;

const model::Target& tiny_target() {
  static const auto target = testing::load_target("targets/qwen3-tiny");
  return target;
}

/// A trainer and the threads that feed it.
struct FedRun {
  std::unique_ptr<pipeline::Pipeline> pipeline;  // outlives the trainer
  std::unique_ptr<Trainer> trainer;
};

pipeline::TargetWorker delayed(pipeline::TargetWorker worker, uint64_t seed) {
  return {
      .run =
          [run = worker.run, seed](data::SourceBatch batch) {
            const auto key = hash_key({seed, static_cast<uint64_t>(batch.at.batch)});
            std::this_thread::sleep_for(std::chrono::microseconds(key % 3000));
            return run(std::move(batch));
          },
      .warm_up = worker.warm_up};
}

struct PipelineRun : ::testing::Test {
  TempFolder folder;
  std::filesystem::path dataset = testing::write_ten_sequences(folder);

  RunOptions options(const std::string& name) const {
    return {.out = (folder / name).string(), .accumulation = 2, .save_every = 3};
  }

  FedRun make(const std::string& name, int64_t num_targets, const std::string& checkpoint = "") {
    FedRun run;
    run.trainer = make_trainer(tiny_target(), dataset, options(name));
    if (!checkpoint.empty()) run.trainer->resume(checkpoint);
    feed(run, num_targets);
    return run;
  }

  void feed(FedRun& run, int64_t num_targets) {
    const auto recipe = run.trainer->recipe();
    const auto& progress = run.trainer->progress();
    const pipeline::FeedStart start{.cursor = progress.cursor, .number = progress.batches};
    std::vector<pipeline::TargetWorker> workers;
    for (int64_t i = 0; i < num_targets; ++i)
      workers.push_back(
          delayed(pipeline::make_target_worker(tiny_target(), recipe), static_cast<uint64_t>(i)));
    data::BatchSource source(
        data::TokenDataset::open(dataset, ""), testing::tiny_data_settings(), 211);
    run.pipeline = std::make_unique<pipeline::Pipeline>(
        pipeline::PipelineShape{.first_number = start.number},
        pipeline::make_loader(std::move(source), recipe, start), std::move(workers));
    run.trainer->use_feed(run.pipeline->feed(0));
  }

  void expect_same_end(const std::string& left, const std::string& right) const {
    for (const char* file : {"model.safetensors", "optimizer.safetensors"})
      EXPECT_TRUE(
          read_file(folder / left / "checkpoints/step-8" / file) ==
          read_file(folder / right / "checkpoints/step-8" / file))
          << file << " of " << left << " and " << right;
  }
};

TEST_F(PipelineRun, HasTheBitsOfOneThreadWithAnyNumberOfTargets) {
  make_trainer(tiny_target(), dataset, options("alone"))->run();
  for (const int64_t num_targets : {1, 5}) {
    const auto name = fmt::format("fed-{}", num_targets);
    make(name, num_targets).trainer->run();
    expect_same_end(name, "alone");
  }
}

TEST_F(PipelineRun, GoesOnAfterTheLastBatchConsumedNotTheLastOneMade) {
  make_trainer(tiny_target(), dataset, options("alone"))->run();
  int asked = 0;
  make("stopped", 3).trainer->run([&] { return ++asked > 3; });
  const auto rest = make("stopped", 2, (folder / "stopped/checkpoints/step-3").string());
  EXPECT_EQ(rest.trainer->progress().batches, 6);
  rest.trainer->run();
  expect_same_end("stopped", "alone");
}

TEST_F(PipelineRun, LogsWhoWaited) {
  make("run", 2).trainer->run();
  const auto lines = testing::read_metrics(folder / "run");
  ASSERT_EQ(lines.size(), 8U);
  for (const auto& line : lines) {
    ASSERT_EQ(line.at("wait").size(), 4U);
    for (const char* worker : {"loader", "target 0", "target 1", "drafter 0"}) {
      const double share = line.at("wait").at(worker).get<double>();
      EXPECT_GE(share, 0);
      EXPECT_LE(share, 1);
    }
  }
}

TEST_F(PipelineRun, IsTracedInAllItsThreads) {
  auto traced = options("run");
  traced.profile_steps = 5;  // more than the queues hold when it begins
  FedRun run;
  run.trainer = make_trainer(tiny_target(), dataset, traced);
  feed(run, 2);
  run.trainer->run();
  const auto trace = formats::Json::parse(read_file(folder / "run/trace.json"));
  std::map<std::string, std::set<int64_t>> threads;  // of each stage
  for (const auto& event : trace.at("traceEvents"))
    if (event.at("ph") == "X" && event.at("tid").is_number())
      threads[event.at("name").get<std::string>()].insert(event.at("tid").get<int64_t>());
  EXPECT_EQ(threads["the target's forward"].size(), 2U);
  EXPECT_EQ(threads["reading a batch"].size(), 1U);
  EXPECT_EQ(threads["the drafter's backward"].size(), 1U);
  std::set<int64_t> all;
  for (const char* stage : {"the target's forward", "reading a batch", "the drafter's backward"})
    all.insert(threads[stage].begin(), threads[stage].end());
  EXPECT_EQ(all.size(), 4U);
}

TEST_F(PipelineRun, EndsWithTheErrorOfTheLoader) {
  FedRun run;
  run.trainer = make_trainer(tiny_target(), dataset, options("run"));
  run.pipeline = std::make_unique<pipeline::Pipeline>(
      pipeline::PipelineShape{},
      [](int64_t) -> data::SourceBatch { throw std::runtime_error("the disk is gone"); },
      std::vector{pipeline::make_target_worker(tiny_target(), run.trainer->recipe())});
  run.trainer->use_feed(run.pipeline->feed(0));
  EXPECT_THROW(
      {
        try {
          run.trainer->run();
        } catch (const std::runtime_error& error) {
          EXPECT_STREQ(error.what(), "the disk is gone");
          throw;
        }
      },
      std::runtime_error);
}

}  // namespace
}  // namespace draftsmith::train
