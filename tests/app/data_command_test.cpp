// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "draftsmith/base/atomic_file.h"

#include "tests/app/program.h"

namespace draftsmith::app {
namespace {

namespace fs = std::filesystem;
using testing::operator+;
using testing::Arguments;
using testing::fixture;
using testing::make_sequence;
using testing::run_program;
using testing::TempFolder;

struct DataCommand : ::testing::Test {
  TempFolder folder;
  fs::path target = fixture("targets/qwen3-tiny");

  fs::path write(const std::vector<data::TokenSequence>& sequences) const {
    return testing::write_dataset_folder(folder, "dataset", sequences);
  }
  /// A train command whose first step reads every batch of the dataset.
  testing::ProcessResult train(const fs::path& dataset, const Arguments& more) const {
    return run_program(
        Arguments{"train"} + testing::tiny_settings(target) +
        Arguments{
            "--data.path=" + dataset.string(), "--train.out=" + (folder / "run").string(),
            "--train.log_every=1", "--train.lr=0.01", "--train.schedule=constant"} +
        more);
  }
  size_t count_steps() const {
    const std::string text = read_file(folder / "run" / "metrics.jsonl");
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  }
};

TEST_F(DataCommand, CountsWhatIsWrong) {
  auto outside = make_sequence(7, 2, 5);
  outside.ids[3] = 211;
  const auto dataset = write(
      {make_sequence(12, 4, 1), make_sequence(9, 9, 2), make_sequence(8, 7, 3),
       make_sequence(5, 0, 4), make_sequence(12, 6, 1), outside, data::TokenSequence{}});
  const auto result = run_program(
      {"data", "--data.path=" + dataset.string(), "--target=" + target.string(), "--json"});
  EXPECT_EQ(result.exit_code, 3);  // for the id outside the vocabulary
  EXPECT_NE(testing::last_line(result.err).find("row 5, token 3: id 211"), std::string::npos);
  const auto json = formats::Json::parse(result.out).at(0);
  EXPECT_EQ(json.at("sequences"), 7);
  EXPECT_EQ(json.at("tokens"), 12 + 9 + 8 + 5 + 12 + 7);
  EXPECT_EQ(json.at("supervised_tokens"), 8 + 0 + 1 + 5 + 6 + 5);
  EXPECT_EQ(json.at("unsupervised"), 1);
  EXPECT_EQ(json.at("no_anchor"), 1);
  EXPECT_EQ(json.at("all_supervised"), 1);
  EXPECT_EQ(json.at("outside_vocabulary"), 1);
  EXPECT_EQ(json.at("duplicates"), 1);
  EXPECT_EQ(json.at("empty"), 1);
  EXPECT_EQ(json.at("lengths").at("max"), 12);
  EXPECT_EQ(json.at("lengths").at("median"), 8);
}

TEST_F(DataCommand, ShowsBatchesAndTheMask) {
  auto sequence = make_sequence(4, 2, 1);
  sequence.ids = {10, 11, 12, 13};
  const auto dataset = write({sequence, make_sequence(300, 2, 2)});
  const auto result =
      run_program({"data", "--data.path=" + dataset.string(), "--show=1", "--data.num_buckets=2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* part :
       {"2 samples loaded (Arrow-backed, lazy access)",
        "Batches per epoch: 1 (min=2 max=2 avg=2.0)", "Bucket 0 [   0, 5):      0 batches (  0.0%)",
        "Bucket 1 [   5, 301):      1 batches (100.0%)", "10 11 [[12 13 ]]"})
    EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
}

TEST_F(DataCommand, ShowsTheRowsBesideADamagedOne) {
  auto damaged = make_sequence(6, 2, 1);
  damaged.mask.pop_back();
  auto good = make_sequence(4, 2, 1);
  good.ids = {10, 11, 12, 13};
  const auto dataset = write({damaged, good});
  const auto result = run_program({"data", "--data.path=" + dataset.string(), "--show=2"});
  EXPECT_EQ(result.exit_code, 3) << result.err;
  for (const char* part :
       {"1 sequences (50.00 %) cannot be read", "--- row 0\nrow 0: expected 6 values",
        "--- row 1\n10 11 [[12 13 ]]"})
    EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
}

// 4,096 positions: training lowers data.max_length, so a look at the data does too.
TEST_F(DataCommand, PlansTheBatchesThatTrainingWithTheTargetMakes) {
  const auto dataset = write({make_sequence(5000, 2, 1), make_sequence(40, 2, 2)});
  const Arguments arguments = {"data", "--data.path=" + dataset.string()};
  EXPECT_NE(run_program(arguments).out.find("longer than 8192 tokens: 0 cut"), std::string::npos);
  const auto result = run_program(arguments + Arguments{"--target=" + target.string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("lowered to the target's 4096 positions"), std::string::npos);
  EXPECT_NE(result.out.find("longer than 4096 tokens: 1 cut"), std::string::npos) << result.out;
}

// The target's own answers are all its first choice; random ids hardly ever are.
TEST_F(DataCommand, TellsWhetherAnswersAreTheTargetsOwn) {
  const auto prompts = testing::write_prompts(folder, 4);
  const Arguments own = {"--target.path=" + target.string(), "--target.dtype=float32"};
  ASSERT_EQ(
      run_program(
          Arguments{
              "generate", "--generate.prompts=" + prompts.string(),
              "--generate.out=" + (folder / "answers").string(), "--generate.max_new_tokens=12",
              "--generate.ignore_stop=true"} +
          own)
          .exit_code,
      0);
  const auto share = [&](const fs::path& dataset) {
    const auto result =
        run_program(Arguments{"data", "--json", "--data.path=" + dataset.string()} + own);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return formats::Json::parse(result.out).at(0).at("target_argmax_share").get<double>();
  };
  EXPECT_GT(share(folder / "answers"), 0.99);
  EXPECT_LT(share(write({make_sequence(40, 4, 1), make_sequence(40, 4, 2)})), 0.2);
}

// F09: nothing is left of one sequence after the cut, and a batch of it makes no step.
TEST_F(DataCommand, TrainingSkipsAndCountsWhatHasNoTrainableTokens) {
  const auto dataset = write(
      {make_sequence(40, 30, 1), make_sequence(40, 4, 2), make_sequence(40, 40, 3),
       make_sequence(40, 39, 4)});
  const auto result = train(
      dataset, {"--data.max_length=31", "--data.max_sequences_per_batch=1", "--train.epochs=2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(
      result.err.find("4 read = 1 trained + 0 held out + 0 too long + 3 without"),
      std::string::npos)
      << result.err;
  EXPECT_EQ(count_steps(), 2U);
  EXPECT_NE(
      result.err.find(
          "4 read = 1 trained + 0 not reached + 0 too long + 3 without trainable tokens + 0 held"),
      std::string::npos)
      << result.err;
}

TEST_F(DataCommand, TrainingSaysHowManySequencesItCameTo) {
  const auto dataset = testing::write_tiny_dataset(folder, 10);
  const auto result = train(dataset, {"--data.max_sequences_per_batch=2", "--train.max_steps=3"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(
      result.err.find(
          "10 read = 6 trained + 4 not reached + 0 too long + 0 without trainable tokens + 0 held"),
      std::string::npos)
      << result.err;
}

// F14: shards of state.json in order, a stray file beside them ignored.
TEST_F(DataCommand, ReadsTheShardsThatTheStateFileLists) {
  const auto result =
      run_program({"data", "--json", "--data.path=" + fixture("arrow/two_shards").string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto json = formats::Json::parse(result.out).at(0);
  EXPECT_EQ(json.at("sequences"), 5);
  EXPECT_EQ(json.at("supervised_tokens"), 10);
  // The same rows in the file format, which has a footer.
  for (const char* name : {"arrow/two_shards", "arrow/file_format"}) {
    const auto shown = run_program({"data", "--show=9", "--data.path=" + fixture(name).string()});
    EXPECT_EQ(shown.exit_code, 0) << shown.err;
    for (int i = 0; i < 5; ++i)
      EXPECT_NE(
          shown.out.find(fmt::format("--- row {}\n{} [[{} {} ]]\n", i, i, i + 1, i + 2)),
          std::string::npos)
          << shown.out;
    EXPECT_EQ(shown.out.find("--- row 5"), std::string::npos);
  }
  testing::expect_refused(
      folder, {"data", "--data.path=" + fixture("arrow/dataset_dict").string()}, 2,
      {"data.split", "train", "test"});
}

// F15: the padded size counts, nothing is lost, planned steps are executed steps.
TEST_F(DataCommand, TrainingHoldsTheBudgetWithOneOddSequence) {
  std::vector<data::TokenSequence> sequences(64, make_sequence(4, 0, 1));
  sequences.push_back(make_sequence(128, 0, 2));
  const auto dataset = write(sequences);
  const Arguments budget = {"--data.tokens_per_batch=256"};
  const auto result = train(dataset, budget + Arguments{"--train.epochs=2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("65 read = 65 trained"), std::string::npos) << result.err;
  // 64 x 4 tokens fill one batch, the long sequence makes another.
  EXPECT_NE(result.err.find("Batches per epoch: 2 (min=1 max=64"), std::string::npos) << result.err;
  EXPECT_EQ(count_steps(), 4U);
}

// F15 (b) to (d): a sequence that fits no batch is counted, none is lost, a single one is a batch.
TEST_F(DataCommand, TrainingPlansAsManyBatchesAsItRuns) {
  struct Case {
    std::vector<int64_t> lengths;
    const char* budget;
    const char* counts;
    const char* batches;
    size_t steps;  // of two epochs
  };
  const Case cases[] = {
      {{4, 40, 8}, "16", "3 read = 2 trained + 0 held out + 1 too long", "1 (min=2 max=2", 2},
      {{3, 3, 3, 9, 9, 9, 9, 17}, "18", "8 read = 8 trained", "4 (min=1 max=3", 8},
      {{12}, "18", "1 read = 1 trained", "1 (min=1 max=1", 2}};
  for (const Case& tested : cases) {
    std::vector<data::TokenSequence> sequences;
    for (const int64_t length : tested.lengths)
      sequences.push_back(make_sequence(length, 0, static_cast<uint64_t>(length)));
    const auto dataset = write(sequences);
    const auto result = train(
        dataset, {"--train.epochs=2", fmt::format("--data.tokens_per_batch={}", tested.budget)});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.err.find(tested.counts), std::string::npos) << result.err;
    EXPECT_NE(
        result.err.find(fmt::format("Batches per epoch: {}", tested.batches)), std::string::npos)
        << result.err;
    EXPECT_EQ(count_steps(), tested.steps);
    fs::remove_all(folder / "run");
    fs::remove_all(dataset);
  }
}

TEST_F(DataCommand, TrainsAMixtureThatTheSettingsFileLists) {
  const auto a = testing::write_dataset_folder(
      folder, "a", {make_sequence(12, 2, 1), make_sequence(12, 2, 2), make_sequence(12, 2, 3)});
  const auto b = testing::write_dataset_folder(folder, "b", {make_sequence(9, 2, 4)});
  const auto file = folder.write(
      "run.toml", "[data]\npath = [{path = \"" + a.string() + "\", weight = 3}, {path = \"" +
                      b.string() + "\", weight = 1}]\n");
  const Arguments arguments = Arguments{"train", "--config=" + file.string()} +
                              testing::tiny_settings(target) +
                              Arguments{
                                  "--train.out=" + (folder / "run").string(), "--train.max_steps=4",
                                  "--data.max_sequences_per_batch=1", "--train.log_every=1"};
  const auto result = run_program(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("75.0 % of the batches from " + a.string()), std::string::npos)
      << result.err;
  // What was written can be read again.
  EXPECT_EQ(
      run_program(
          {"train", "--resume", "--train.out=" + (folder / "run").string(), "--train.max_steps=5"})
          .exit_code,
      0);
}

}  // namespace
}  // namespace draftsmith::app
