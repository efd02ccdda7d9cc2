// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>

#include "draftsmith/base/error.h"
#include "draftsmith/train/checkpoint_list.h"

#include "tests/support/golden.h"
#include "tests/support/rank_threads.h"
#include "tests/support/reference.h"
#include "tests/train/tiny_run.h"

namespace draftsmith::train {
namespace {

namespace fs = std::filesystem;
using pipeline::Ranks;
using testing::make_trainer;
using testing::read_metrics;
using testing::run_ranks;
using testing::RunOptions;
using testing::TempFolder;

const model::Target& tiny_target() {
  static const auto target = testing::load_target("targets/qwen3-tiny");
  return target;
}

/// The sequences of every batch of a run, by the batch's number.
struct Record {
  std::mutex mutex;
  std::map<int64_t, std::vector<int64_t>> sequences;
};

/// Notes what is taken from another feed. `before` is called with each number.
class RecordingFeed final : public pipeline::BatchFeed {
 public:
  RecordingFeed(
      std::unique_ptr<pipeline::BatchFeed> feed,
      Record& record,
      std::function<void(int64_t)> before)
      : feed_(std::move(feed)), record_(record), before_(std::move(before)) {}

  std::optional<pipeline::TrainBatch> next() override {
    auto batch = feed_->next();
    if (before_) before_(batch->number);
    const std::lock_guard lock(record_.mutex);
    EXPECT_TRUE(record_.sequences.emplace(batch->number, batch->tokens.sequences).second);
    return batch;
  }

 private:
  std::unique_ptr<pipeline::BatchFeed> feed_;
  Record& record_;
  std::function<void(int64_t)> before_;
};

struct RunHooks {
  Record* record = nullptr;
  std::function<void(int64_t)> before_batch = {};
  std::function<bool(const Ranks&, const Trainer&)> should_stop = {};
  bool resumes = false;
};

/// A run by `size` ranks. Returns the steps that each of them counted.
std::vector<int64_t>
run(int64_t size, const fs::path& dataset, const RunOptions& options, const RunHooks& hooks = {}) {
  std::vector<int64_t> steps(static_cast<size_t>(size), -1);
  run_ranks(size, [&](Ranks& ranks) {
    const auto trainer = make_trainer(tiny_target(), dataset, options, ranks);
    if (hooks.resumes) trainer->resume(find_newest_checkpoint(options.out).value());
    if (hooks.record != nullptr) {
      data::DataSettings settings;
      settings.max_sequences_per_batch = options.sequences_per_batch;
      settings.num_anchors = options.num_anchors;
      settings.seed = 1;
      data::BatchSource source(
          data::TokenDataset::open(dataset, ""), settings, tiny_target().config().vocab_size);
      const auto& progress = trainer->progress();
      trainer->use_feed(std::make_unique<RecordingFeed>(
          std::make_unique<pipeline::InlineFeed>(
              tiny_target(), std::move(source), trainer->recipe(),
              pipeline::FeedStart{progress.cursor, progress.batches, ranks.rank(), ranks.size()}),
          *hooks.record, hooks.before_batch));
    }
    trainer->run([&] { return hooks.should_stop && hooks.should_stop(ranks, *trainer); });
    steps[static_cast<size_t>(ranks.rank())] = trainer->progress().step;
    // All ranks hold the same weights.
    for (const auto& [name, weight] : trainer->drafter().parameters()) {
      const auto of_first = weight.detach().clone();
      ranks.broadcast(of_first);
      EXPECT_TRUE(weight.equal(of_first)) << name;
    }
  });
  return steps;
}

formats::SafetensorsReader read_newest(const fs::path& out, const std::string& file) {
  return formats::SafetensorsReader::open_file(find_newest_checkpoint(out).value() / file);
}

void expect_same_bytes(const fs::path& left, const fs::path& right) {
  const auto newest = [](const fs::path& out) { return find_newest_checkpoint(out).value(); };
  EXPECT_EQ(newest(left).filename(), newest(right).filename());
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_TRUE(read_file(newest(left) / file) == read_file(newest(right) / file)) << file;
}

TEST(SeveralRanks, MakeTheStepOfOneHoweverSequencesAreShared) {
  // F06: 3, 7, 20 and 2 supervised tokens at the end of 64.
  const TempFolder folder;
  std::vector<data::TokenSequence> sequences;
  uint64_t seed = 0;
  for (const int64_t supervised : {3, 7, 20, 2})
    sequences.push_back(testing::make_sequence(64, 64 - supervised, seed++));
  const auto dataset = write_dataset_folder(folder, "dataset", sequences);
  struct Way {
    int64_t ranks, accumulation, sequences_per_batch;
  };
  const auto out = [&](const Way& way) {
    return folder / fmt::format("{}x{}x{}", way.ranks, way.accumulation, way.sequences_per_batch);
  };
  const Way whole{1, 1, 4};
  const std::vector<Way> ways = {whole, {1, 4, 1}, {2, 2, 1}, {4, 1, 1}, {2, 1, 2}};
  for (const Way& way : ways) {
    SCOPED_TRACE(out(way).string());
    const RunOptions options{
        .out = out(way).string(),
        .accumulation = way.accumulation,
        .epochs = 1,
        .sequences_per_batch = way.sequences_per_batch,
        .num_anchors = 1000,
        .anchors_per_sequence = 8};
    EXPECT_EQ(
        run(way.ranks, dataset, options), std::vector<int64_t>(static_cast<size_t>(way.ranks), 1));
    const auto line = read_metrics(out(way)).at(0);
    const auto expected = read_metrics(out(whole)).at(0);
    for (const char* key : {"loss", "ce", "kl", "cap", "grad_norm", "expected_acceptance"}) {
      const double value = expected.at(key).get<double>();
      EXPECT_NEAR(line.at(key).get<double>(), value, 1e-6 * value) << key;
    }
    EXPECT_EQ(line.at("accuracy_by_slot"), expected.at("accuracy_by_slot"));
    // The first moment after one step is the gradient times a constant.
    const auto moments = read_newest(out(way), "optimizer.safetensors");
    const auto expected_moments = read_newest(out(whole), "optimizer.safetensors");
    const auto like = testing::make_tiny_drafter(tiny_target());
    for (const auto& [name, parameter] : like.parameters())
      EXPECT_LE(
          testing::relative_difference(
              moments.tensor("exp_avg." + name), expected_moments.tensor("exp_avg." + name)),
          1e-6)
          << name;
  }
}

TEST(SeveralRanks, ShardTheOptimizerBitForBit) {
  const TempFolder folder;
  const auto dataset = testing::write_ten_sequences(folder);
  using Weights = std::pair<std::string, bool>;  // dtype, whether masters are split
  for (const auto& [dtype, is_split] :
       {Weights("float32", false), Weights("bfloat16", false), Weights("bfloat16", true)}) {
    for (const int64_t size : {2, 3}) {
      SCOPED_TRACE(fmt::format("{} {} {}", dtype, is_split, size));
      RunOptions options{.dtype = dtype, .accumulation = 2, .split_masters = is_split};
      const auto out = [&, &dtype = dtype, is_split = is_split](const char* kind) {
        return folder / fmt::format("{}-{}-{}-{}", kind, dtype, is_split, size);
      };
      options.out = out("whole").string();
      run(size, dataset, options);
      options.out = out("sharded").string();
      options.shard_optimizer = true;
      run(size, dataset, options);
      expect_same_bytes(out("whole"), out("sharded"));
      const auto metrics = read_metrics(out("sharded"));
      const auto expected = read_metrics(out("whole"));
      ASSERT_EQ(metrics.size(), expected.size());
      for (size_t i = 0; i < metrics.size(); ++i)
        for (const char* key : {"loss", "grad_norm"})
          EXPECT_EQ(metrics[i].at(key), expected[i].at(key)) << i;
    }
  }
}

TEST(SeveralRanks, EndTogetherWithUnevenData) {
  // F12: the last of two steps has one batch for two ranks; evaluations and checkpoints between.
  const TempFolder folder;
  const auto dataset = testing::write_ten_sequences(folder);
  RunOptions options{
      .out = (folder / "two").string(),
      .accumulation = 2,
      .save_every = 1,
      .epochs = 1,
      .held_out = 0.2,
      .eval_every = 1};
  EXPECT_EQ(run(2, dataset, options), std::vector<int64_t>(2, 1));
  options.held_out = 0.1;
  options.out = (folder / "more").string();
  EXPECT_EQ(run(2, dataset, options), std::vector<int64_t>(2, 2));
  options.out = (folder / "alone").string();
  options.accumulation = 4;
  EXPECT_EQ(run(1, dataset, options), std::vector<int64_t>(1, 2));
  const auto two = read_metrics(folder / "more");
  const auto alone = read_metrics(folder / "alone");
  ASSERT_EQ(two.size(), 2U);
  for (size_t i = 0; i < 2; ++i)
    for (const char* key : {"loss", "grad_norm", "eval_loss", "eval_expected_acceptance"}) {
      const double value = alone[i].at(key).get<double>();
      EXPECT_NEAR(two[i].at(key).get<double>(), value, 1e-5 * value) << i << " " << key;
    }
}

TEST(SeveralRanks, EightOnTheCpuTakeEachBatchOnce) {
  const TempFolder folder;
  const auto dataset = testing::write_ten_sequences(folder);
  Record eight, one;
  RunOptions options{.out = (folder / "eight").string(), .shard_optimizer = true};
  // 15 batches: the second step has seven.
  EXPECT_EQ(run(8, dataset, options, {.record = &eight}), std::vector<int64_t>(8, 2));
  options.out = (folder / "one").string();
  options.accumulation = 8;
  run(1, dataset, options, {.record = &one});
  EXPECT_EQ(eight.sequences.size(), 15U);
  EXPECT_EQ(eight.sequences, one.sequences);
  const auto weights = read_newest(folder / "eight", "model.safetensors");
  const auto expected = read_newest(folder / "one", "model.safetensors");
  const auto like = testing::make_tiny_drafter(tiny_target());
  for (const auto& [name, parameter] : like.parameters())
    EXPECT_LE(testing::relative_difference(weights.tensor(name), expected.tensor(name)), 1e-4)
        << name;
}

TEST(SeveralRanks, GoOnInAnyNumberWithTheSameSequencesInTheSameOrder) {
  const TempFolder folder;
  const auto dataset = testing::write_ten_sequences(folder);
  Record unbroken, resumed;
  RunOptions options{.out = (folder / "unbroken").string()};
  run(1, dataset, options, {.record = &unbroken});
  ASSERT_EQ(unbroken.sequences.size(), 15U);

  options.out = (folder / "resumed").string();
  options.shard_optimizer = true;
  const auto stop_after = [](int64_t step) {
    return [step](const Ranks& ranks, const Trainer& trainer) {
      // One rank alone is told to stop.
      return ranks.rank() == ranks.size() - 1 && trainer.progress().step == step;
    };
  };
  EXPECT_EQ(
      run(2, dataset, options, {.record = &resumed, .should_stop = stop_after(1)}),
      std::vector<int64_t>(2, 1));
  EXPECT_EQ(resumed.sequences.size(), 2U);
  EXPECT_EQ(
      run(3, dataset, options, {.record = &resumed, .should_stop = stop_after(3), .resumes = true}),
      std::vector<int64_t>(3, 3));
  EXPECT_EQ(resumed.sequences.size(), 8U);
  // 7 are left: four steps of two ranks, the last one with a batch for one of them.
  EXPECT_EQ(
      run(2, dataset, options, {.record = &resumed, .resumes = true}), std::vector<int64_t>(2, 7));
  EXPECT_EQ(resumed.sequences, unbroken.sequences);
}

TEST(SeveralRanks, ResumeBitForBitInTheSameNumber) {
  const TempFolder folder;
  const auto dataset = testing::write_ten_sequences(folder);
  RunOptions options{
      .out = (folder / "unbroken").string(), .dtype = "bfloat16", .shard_optimizer = true};
  run(3, dataset, options);
  options.out = (folder / "resumed").string();
  run(3, dataset, options, {.should_stop = [](const Ranks&, const Trainer& trainer) {
        return trainer.progress().step == 2;
      }});
  run(3, dataset, options, {.resumes = true});
  expect_same_bytes(folder / "unbroken", folder / "resumed");
}

TEST(SeveralRanks, EndWithTheErrorOfTheOneThatFails) {
  const TempFolder folder;
  const auto dataset = testing::write_ten_sequences(folder);
  for (const bool is_sharded : {false, true}) {
    Record record;
    std::atomic<int64_t> failed = 0;
    const RunOptions options{
        .out = (folder / fmt::format("run-{}", is_sharded)).string(),
        .shard_optimizer = is_sharded};
    const auto fail_at = [&](int64_t number) {
      if (number != 7) return;
      ++failed;
      throw DataError({.what = "shard 3", .expected = "rows", .got = "noise"});
    };
    // Rank 1 of 3 gets batch 7; the lowest rank's error is that of rank 0, which tells of it.
    testing::expect_error<DeviceError>(
        [&] { run(3, dataset, options, {.record = &record, .before_batch = fail_at}); },
        {"rank 1", "shard 3"});
    EXPECT_EQ(failed, 1);
  }
}

/// `run` of each of three ranks; all must have ended within a second of rank `first`.
void expect_end_together(int64_t first, const std::function<void(Ranks&)>& run) {
  using Clock = std::chrono::steady_clock;
  std::vector<Clock::time_point> ends(3);
  try {
    run_ranks(3, [&](Ranks& ranks) {
      const auto note_end = [&] { ends[static_cast<size_t>(ranks.rank())] = Clock::now(); };
      try {
        run(ranks);
      } catch (const std::exception&) {
        note_end();
        throw;
      }
      ADD_FAILURE() << "rank " << ranks.rank() << " ended without an error";
    });
  } catch (const std::exception&) {
    for (const auto& end : ends)
      EXPECT_LT(end - ends[static_cast<size_t>(first)], std::chrono::seconds(1));
    throw;
  }
}

TEST(SeveralRanks, EndWithinASecondOfASaveThatFails) {
  const TempFolder folder;
  const auto dataset = testing::write_ten_sequences(folder);
  folder.write("run/checkpoints", "a file is in the way");
  const RunOptions options{.out = (folder / "run").string(), .save_every = 1};
  testing::expect_error<DeviceError>(
      [&] {
        expect_end_together(
            0, [&](Ranks& ranks) { make_trainer(tiny_target(), dataset, options, ranks)->run(); });
      },
      {"run/checkpoints"});
}

TEST(SeveralRanks, EndWithinASecondOfAnErrorBetweenSteps) {
  const TempFolder folder;
  const auto dataset = testing::write_ten_sequences(folder);
  const RunOptions options{.out = (folder / "run").string()};
  testing::expect_error<DeviceError>(
      [&] {
        expect_end_together(1, [&](Ranks& ranks) {
          const auto trainer = make_trainer(tiny_target(), dataset, options, ranks);
          trainer->run([&] {
            if (ranks.rank() == 1 && trainer->progress().step == 2)
              throw DataError({.what = "the clock", .expected = "a time", .got = "none"});
            return false;
          });
        });
      },
      {"rank 1", "the clock"});
}

TEST(SeveralRanks, RefuseAStepTogetherIfOneHasNoNumbers) {
  const TempFolder folder;
  constexpr int64_t kBadToken = 3;
  std::vector<data::TokenSequence> sequences;
  for (uint64_t i = 0; i < 10; ++i) {
    auto sequence = testing::make_sequence(12, 4, i);
    for (auto& id : sequence.ids)
      if (id == kBadToken) id = 4;
    if (i == 4) sequence.ids[2] = kBadToken;
    sequences.push_back(sequence);
  }
  const auto dataset = write_dataset_folder(folder, "dataset", sequences);
  model::TargetSettings settings;
  settings.path = testing::write_broken_target(folder, kBadToken).string();
  settings.dtype = "float32";
  const auto target = model::Target::load(settings);
  const RunOptions options{.out = (folder / "run").string(), .epochs = 1};
  std::vector<int64_t> steps(2);
  run_ranks(2, [&](Ranks& ranks) {
    const auto trainer = make_trainer(target, dataset, options, ranks);
    // Three steps of two batches; five batches in all, and one step is refused, so the run goes on
    // into the next epoch.
    trainer->run([&] { return trainer->progress().batches >= 5; });
    steps[static_cast<size_t>(ranks.rank())] = trainer->progress().step;
    for (const auto& [name, weight] : trainer->drafter().parameters())
      EXPECT_TRUE(weight.isfinite().all().item<bool>()) << name;
  });
  EXPECT_EQ(steps, std::vector<int64_t>(2, 2));
  EXPECT_TRUE(fs::exists(folder / "run/bad_batches"));
}

}  // namespace
}  // namespace draftsmith::train
