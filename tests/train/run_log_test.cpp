// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/run_log.h"

#include <gtest/gtest.h>

#include "draftsmith/base/error.h"

#include "tests/train/tiny_run.h"

namespace draftsmith::train {
namespace {

namespace fs = std::filesystem;
using testing::TempFolder;

LoggedSteps make_line(int64_t step) {
  LoggedSteps line;
  line.step = step;
  line.steps = 2;
  line.seconds = 0.5;
  line.sums.loss_sum = static_cast<double>(3 * step);
  line.sums.weight_sum = 3;
  line.sums.tokens = 100;
  line.sums.correct = {0, 1, 0};
  line.sums.count = {0, 2, 2};
  line.lr = 0.25;
  return line;
}

std::vector<int64_t> steps_of(const fs::path& run) {
  std::vector<int64_t> steps;
  for (const auto& line : testing::read_metrics(run))
    steps.push_back(line.at("step"));
  return steps;
}

TEST(RunLog, WritesRatiosOfTheSums) {
  const TempFolder folder;
  RunLog log(folder.path(), 0);
  log.write(make_line(4));
  auto line = make_line(8);
  line.evaluation = make_line(6).sums;
  line.workers = {
      {"loader", {.working = 1, .waiting = 3}},
      {"drafter 2", {.working = 2, .waiting = 1, .meeting = 1}}};
  log.write(line);
  const auto lines = testing::read_metrics(folder.path());
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].at("loss"), 4);
  EXPECT_EQ(lines[0].at("lr"), 0.25);
  EXPECT_EQ(lines[0].at("tokens_per_s"), 200);
  EXPECT_EQ(lines[0].at("step_ms"), 250);
  EXPECT_EQ(lines[0].at("accuracy"), 0.25);
  EXPECT_EQ(lines[0].at("accuracy_by_slot"), (std::vector<double>{0.5, 0}));
  EXPECT_FALSE(lines[0].contains("eval_loss"));
  EXPECT_EQ(lines[1].at("eval_loss"), 6);
  EXPECT_EQ(lines[1].at("eval_accuracy"), 0.25);
  EXPECT_EQ(
      lines[1].at("wait"),
      (formats::Json{{"loader", 0.75}, {"drafter 2", 0.25}, {"drafter 2 for others", 0.25}}));
}

TEST(RunLog, DropsWhatComesAgainAndWhatWasCutShort) {
  const TempFolder folder;
  {
    RunLog log(folder.path(), 0);
    for (const int64_t step : {2, 4, 6})
      log.write(make_line(step));
  }
  const std::string text = read_file(folder / "metrics.jsonl");
  folder.write("metrics.jsonl", text + "{\"step\": \"x\"}\n[2]\n{\"step\": 4, \"lo");
  RunLog log(folder.path(), 4);
  EXPECT_EQ(steps_of(folder.path()), (std::vector<int64_t>{2, 4}));
  log.write(make_line(6));
  EXPECT_EQ(read_file(folder / "metrics.jsonl"), text);
  RunLog(folder.path(), 0);
  EXPECT_EQ(read_file(folder / "metrics.jsonl"), "");
}

TEST(RunLog, NamesTheFileThatCannotBeWritten) {
  const TempFolder folder;
  RunLog log(folder.path(), 0);
  fs::create_directories(folder / "metrics.jsonl");
  EXPECT_THROW(log.write(make_line(1)), DeviceError);
}

}  // namespace
}  // namespace draftsmith::train
