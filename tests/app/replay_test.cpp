// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/data/feature_store.h"
#include "draftsmith/data/feature_writer.h"

#include "tests/app/tiny_program_run.h"

namespace draftsmith::app {
namespace {

namespace fs = std::filesystem;
using testing::operator+;
using testing::Arguments;
using testing::run_program;

constexpr int64_t kBadToken = 210;

/// A target that knows one token not, and a dataset whose sequences `bad` hold it.
struct Replay : testing::ProgramRuns {
  void prepare(const std::vector<size_t>& bad) {
    target = testing::write_broken_target(folder, kBadToken);
    std::vector<data::TokenSequence> sequences;
    for (uint64_t i = 0; i < 10; ++i)
      sequences.push_back(testing::make_sequence(12, 4, i));
    for (const size_t i : bad)
      sequences[i].ids[2] = kBadToken;
    dataset = testing::write_dataset_folder(folder, "broken", sequences);
  }
  fs::path bad_batch(const std::string& name) const {
    return fs::directory_iterator(folder / name / "bad_batches")->path();
  }
};

TEST_F(Replay, RunsTheBatchAloneAndNamesTheSequence) {
  prepare({4});
  const auto trained = expect_done(train("run", 5, {"--train.keep_last=9"}));  // it went on
  EXPECT_NE(trained.err.find("the step is not applied"), std::string::npos);
  EXPECT_NE(trained.err.find("bad_batches/step-"), std::string::npos);
  const auto before = testing::snapshot(folder / "run");

  const Arguments replay = {"train", "--replay=" + bad_batch("run").string()};
  const auto result = run_program(replay);
  EXPECT_EQ(result.exit_code, 6) << result.err;
  testing::expect_message_form(testing::last_line(result.err));
  EXPECT_NE(result.err.find(", as in the run"), std::string::npos) << result.err;
  EXPECT_NE(result.out.find("target's features: not finite in sequences 4\n"), std::string::npos)
      << result.out;
  EXPECT_TRUE(testing::snapshot(folder / "run") == before) << "a replay changes nothing";

  // With a target that knows the token the same batch is fine.
  const auto good = run_program(
      replay + Arguments{"--target.path=" + testing::fixture("targets/qwen3-tiny").string()});
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_EQ(good.out.find("not finite"), std::string::npos) << good.out;
}

TEST_F(Replay, NamesTheSequencesWhereverTheyStandInTheBatch) {
  const std::set<int64_t> broken = {1, 4, 6};
  prepare({1, 4, 6});
  expect_done(train("run", 5, {"--train.keep_last=9"}));
  std::set<int64_t> named;
  for (const auto& file : fs::directory_iterator(folder / "run/bad_batches")) {
    const auto batches = formats::Json::parse(read_file(file.path())).at("batches");
    std::vector<int64_t> bad;
    for (const int64_t sequence : batches[0].at("sequences").get<std::vector<int64_t>>())
      if (broken.contains(sequence)) bad.push_back(sequence);
    named.insert(bad.begin(), bad.end());
    const auto result = run_program({"train", "--replay=" + file.path().string()});
    for (const char* what : {"target's features", "target's last states"})
      EXPECT_NE(
          result.out.find(
              fmt::format("{}: not finite in sequences {}\n", what, fmt::join(bad, ", "))),
          std::string::npos)
          << result.out;
  }
  EXPECT_EQ(named, broken);
}

// The run lowered data.max_length to the target's positions: rows of two sequences, not of ten.
TEST_F(Replay, PacksTheRowsOfTheRun) {
  prepare({4});
  auto config = formats::read_json_file(target / "config.json");
  config["max_position_embeddings"] = 24;
  folder.write("broken-target/config.json", config.dump());
  const auto trained =
      expect_done(train("run", 5, {"--data.batching=pack", "--data.max_sequences_per_batch=1"}));
  EXPECT_NE(
      trained.err.find("data.max_length: 8192 lowered to the target's 24 positions"),
      std::string::npos)
      << trained.err;
  const auto result = run_program({"train", "--replay=" + bad_batch("run").string()});
  EXPECT_EQ(result.exit_code, 6) << result.err;
  EXPECT_NE(result.out.find("target's features: not finite in sequences 4\n"), std::string::npos)
      << result.out;
}

TEST_F(Replay, ReadsTheStoredFeaturesOfTheRun) {
  const fs::path features = folder / "features";
  expect_done(
      {"extract", "--target.path=" + target.string(), "--data.path=" + dataset.string(),
       "--drafter.target_layer_ids=0,2", "--extract.out=" + features.string()});
  {
    // Sequence 4 is not finite on the disk, with the right checksum.
    const data::FeatureStore store(features);
    auto header = store.header();
    data::FeatureWriter writer(features, header, 0);
    std::vector<data::FeatureRecord> records;
    for (int64_t i = 0; i < 10; ++i) {
      data::TokenBatch batch;
      batch.ids = torch::zeros({1, 12 + i}, torch::kLong);
      batch.parts = {{0, 0, 12 + i, i, 0}};
      const auto states = store.read(batch);
      const auto joined = torch::cat({states.features[0], states.last[0]}, -1);
      if (i == 4) joined.fill_(std::numeric_limits<float>::quiet_NaN());
      records.push_back({i, joined});
    }
    writer.add(std::move(records));
    writer.finish();
  }
  dataset = features;
  expect_done(train("run", 5));
  const auto result = run_program({"train", "--replay=" + bad_batch("run").string()});
  EXPECT_EQ(result.exit_code, 6) << result.err;
  EXPECT_NE(result.out.find("target's features: not finite in sequences 4\n"), std::string::npos)
      << result.out;
}

TEST_F(Replay, IsRefusedWhenTheDatasetGivesOtherSequences) {
  prepare({4});
  expect_done(train("run", 5));
  testing::expect_refused(
      folder, {"train", "--replay=" + bad_batch("run").string(), "--data.seed=77"}, 3,
      {"bad_batches/step-", "sequences"});
  testing::expect_refused(folder, {"train", "--replay=no/such.json"}, 3, {"no/such.json"});
}

TEST_F(Replay, IsOfferedTenTimesBeforeTheRunGivesUp) {
  prepare({0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  const auto result = run_program(train("run", 5));
  EXPECT_EQ(result.exit_code, 6) << result.err;
  const std::string message = testing::last_line(result.err);
  testing::expect_message_form(message);
  EXPECT_NE(message.find("10 steps in a row"), std::string::npos) << message;
  EXPECT_NE(read_file(folder / "run/log.txt").find(message), std::string::npos);
  // Nothing was learned, and a resumed run meets the same end.
  EXPECT_EQ(run_program(resume("run")).exit_code, 6);
}

}  // namespace
}  // namespace draftsmith::app
