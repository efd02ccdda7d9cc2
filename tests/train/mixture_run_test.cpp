// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/train/tiny_run.h"

namespace draftsmith::train {
namespace {

using testing::TempFolder;

const model::Target& tiny_target() {
  static const model::Target target = testing::load_target("targets/qwen3-tiny");
  return target;
}

struct MixtureRun : ::testing::Test {
  TempFolder folder;

  std::string write(const std::string& name, int64_t count, uint64_t seed) const {
    std::vector<data::TokenSequence> sequences;
    for (int64_t i = 0; i < count; ++i)
      sequences.push_back(testing::make_sequence(14, 4, seed + static_cast<uint64_t>(i)));
    return testing::write_dataset_folder(folder, name, sequences).string();
  }

  std::unique_ptr<Trainer> make(const std::string& out, int64_t max_steps, int64_t accumulation) {
    data::DataSettings data_settings;
    data_settings.path = "[{\"path\": \"" + write("a", 6, 1) + "\", \"weight\": 3}, {\"path\": \"" +
                         write("b", 4, 50) + "\", \"weight\": 1}]";
    data_settings.max_sequences_per_batch = 1;
    TrainSettings settings;
    settings.out = (folder / out).string();
    std::filesystem::create_directories(settings.out);
    settings.max_steps = max_steps;
    settings.accumulation = accumulation;
    settings.schedule = "constant";
    settings.log_every = 1;
    return std::make_unique<Trainer>(
        tiny_target(), testing::make_tiny_drafter(tiny_target()),
        data::BatchSource::open(data_settings, 211, settings.out),
        testing::make_loss(10, 0.15, 0.1), settings, RunStamp{});
  }
};

TEST_F(MixtureRun, ReportsEachSourceByItself) {
  make("run", 3, 4)->run();
  const auto lines = testing::read_metrics(folder / "run");
  ASSERT_EQ(lines.size(), 3U);
  for (const auto& line : lines) {
    ASSERT_EQ(line.at("source_loss").size(), 2U);
    // Of 4 batches 3 are of the first source, each of one sequence of 14 tokens.
    EXPECT_EQ(line.at("source_tokens"), formats::Json::parse("[42, 14]"));
    const double a = line.at("source_loss")[0].get<double>();
    const double b = line.at("source_loss")[1].get<double>();
    const double all = line.at("loss").get<double>();
    EXPECT_LT(std::min(a, b), all);
    EXPECT_GT(std::max(a, b), all);
    for (const char* key : {"source_accuracy", "source_expected_acceptance"})
      EXPECT_TRUE(line.at(key)[1].is_number()) << key;
  }
}

TEST_F(MixtureRun, HasNoFigureForASourceWithoutABatch) {
  make("run", 2, 1)->run();
  for (const auto& line : testing::read_metrics(folder / "run")) {
    const auto& losses = line.at("source_loss");
    EXPECT_NE(losses[0].is_null(), losses[1].is_null());
  }
}

TEST_F(MixtureRun, ResumesToTheWeightsOfTheUnbrokenRun) {
  const auto whole = make("whole", 11, 1);
  whole->run();
  make("run", 5, 1)->run();
  const auto rest = make("run", 11, 1);
  rest->resume(folder / "run/checkpoints/step-5");
  rest->run();
  for (size_t i = 0; i < whole->drafter().parameters().size(); ++i)
    EXPECT_TRUE(torch::equal(
        whole->drafter().parameters()[i].second, rest->drafter().parameters()[i].second));
}

}  // namespace
}  // namespace draftsmith::train
