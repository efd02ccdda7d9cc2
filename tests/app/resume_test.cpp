// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <csignal>

#include "draftsmith/train/checkpoint.h"

#include "tests/app/tiny_program_run.h"

namespace draftsmith::app {
namespace {

namespace fs = std::filesystem;
using testing::operator+;
using testing::Arguments;
using testing::expect_refused;
using testing::run_program;
using testing::RunningProgram;

struct Resume : testing::ProgramRuns {};

TEST_F(Resume, PassesSettingsThatDoNotTouchTheWeights) {
  expect_done(train("run", 2, {"--train.keep_last=2"}));
  expect_done(resume(
      "run", {"--train.max_steps=4", "--train.log_every=3", "--train.keep_last=1",
              "--train.save_every=7", "--train.eval_every=9", "--train.name=other"}));
  EXPECT_EQ(logged_steps("run"), (std::vector<int64_t>{1, 2, 3, 4}));
  EXPECT_FALSE(fs::exists(checkpoint("run", 2)));
}

TEST_F(Resume, GoesOnWithAnotherNumberOfTargetWorkers) {
  const Arguments exact = {
      "--target.dtype=float32", "--drafter.dtype=float32", "--train.schedule=constant"};
  const auto alone =
      expect_done(train("alone", 4, exact + Arguments{"--pipeline.target_workers=0"}));
  EXPECT_EQ(alone.err.find("bottleneck"), std::string::npos) << alone.err;
  const auto fed = expect_done(train("run", 2, exact + Arguments{"--pipeline.target_workers=3"}));
  EXPECT_NE(fed.err.find("3 + 1 workers were the bottleneck"), std::string::npos) << fed.err;
  EXPECT_TRUE(metrics("run").back().at("wait").contains("target 2"));
  expect_done(resume("run", {"--train.max_steps=4", "--pipeline.target_workers=1"}));
  expect_same_state("run", "alone", 4);
}

TEST_F(Resume, AnnouncesMoreStepsAndRefusesFewer) {
  expect_done(train("run", 4));
  const auto before = testing::snapshot(folder / "run/checkpoints");
  const auto fewer = run_program(resume("run", {"--train.max_steps=3"}));
  EXPECT_EQ(fewer.exit_code, 2) << fewer.err;
  const std::string message = testing::last_line(fewer.err);
  testing::expect_message_form(message);
  for (const char* part :
       {"train.max_steps", "'4 steps'", "'3 steps'", "--train.allow_change=train.max_steps"})
    EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
  EXPECT_TRUE(testing::snapshot(folder / "run/checkpoints") == before);
  const auto result = expect_done(resume("run", {"--train.max_steps=6"}));
  EXPECT_NE(result.err.find("grows from 4 to 6 steps"), std::string::npos) << result.err;
  EXPECT_EQ(logged_steps("run"), count_to(6));
}

TEST_F(Resume, AllowsAChangeOnceWhenItIsNamed) {
  expect_done(train("run", 2));
  const Arguments change = {"--train.lr=0.5", "--train.max_steps=4"};
  expect_refused(folder, resume("run", change), 2, {"train.lr", "'0.0006'", "'0.5'"});
  const auto result =
      expect_done(resume("run", change + Arguments{"--train.allow_change=train.lr"}));
  EXPECT_NE(result.err.find("train.lr changes from '0.0006' to '0.5'"), std::string::npos);
  // The permission is not kept: the next change needs its own.
  EXPECT_NE(read_file(folder / "run/settings.toml").find("allow_change = []"), std::string::npos);
  expect_refused(
      folder, resume("run", {"--train.lr=0.25", "--train.max_steps=6"}), 2, {"train.lr"});
}

TEST_F(Resume, KnowsADatasetAndATargetByTheirContent) {
  expect_done(train("run", 2));
  fs::rename(dataset, folder / "moved");
  fs::copy(target, folder / "copied-target");
  const auto result = expect_done(resume(
      "run", {"--data.path=" + (folder / "moved").string(),
              "--target.path=" + (folder / "copied-target").string(), "--train.max_steps=3"}));
  EXPECT_NE(result.err.find("data.path moved from"), std::string::npos) << result.err;

  testing::write_tiny_dataset(folder, 9);  // another one where the first was
  expect_refused(
      folder, resume("run", {"--data.path=" + dataset.string()}), 2,
      {"data.path", "10 sequences", "9 sequences", "--train.allow_change=data.path"});
}

TEST_F(Resume, BeginsAnewWhenNothingWasSavedYet) {
  expect_done(train("whole", 3));
  fs::create_directories(folder / "run");
  fs::copy_file(folder / "whole/settings.toml", folder / "run/settings.toml");
  folder.write("run/metrics.jsonl", "{\"step\": 1, \"loss\": 7}\n{\"step\"");
  expect_done(resume("run"));
  expect_same_state("run", "whole", 3);
  EXPECT_EQ(logged_steps("run"), count_to(3));
}

TEST_F(Resume, NeedsNotTheFolderThatItsFirstWeightsCameFrom) {
  expect_done(train("first", 1));
  fs::copy(folder / "first/export", folder / "init");
  expect_done(train("run", 2, {"--drafter.init=" + (folder / "init").string()}));
  fs::remove_all(folder / "init");
  expect_done(resume("run", {"--train.max_steps=3"}));
  EXPECT_TRUE(fs::exists(checkpoint("run", 3)));
}

TEST_F(Resume, KeepsTheMemoryPlanWhateverMemoryIsFree) {
  const Arguments sizes = {"--data.tokens_per_batch=256", "--data.num_anchors=2000"};
  expect_done(train("free", 1, sizes + Arguments{"--memory.budget=2GiB"}));
  expect_done(
      train("whole", 4, sizes + Arguments{"--memory.budget=64MiB", "--train.save_every=2"}));
  fs::create_directories(folder / "run/checkpoints");
  fs::copy(checkpoint("whole", 2), checkpoint("run", 2));
  fs::copy_file(folder / "whole/settings.toml", folder / "run/settings.toml");
  expect_done(resume("run", {"--memory.budget=2GiB"}));
  EXPECT_FALSE(train::read_stamp(checkpoint("free", 1)).recomputes_layers);
  for (const char* name : {"whole", "run"}) {
    const auto stamp = train::read_stamp(checkpoint(name, 4));
    EXPECT_TRUE(stamp.recomputes_layers) << name;
    EXPECT_GT(stamp.chunk_rows, 0) << name;
  }
  expect_same_state("run", "whole", 4);
}

TEST_F(Resume, StampsItsCheckpoints) {
  expect_done(train("run", 1));
  const auto stamp = train::read_stamp(checkpoint("run", 1));
  EXPECT_EQ(stamp.settings.at("train.max_steps"), "1");
  EXPECT_EQ(stamp.dataset.rfind("10 sequences, ", 0), 0U) << stamp.dataset;
  EXPECT_NE(stamp.target.find(" bytes of weights, "), std::string::npos) << stamp.target;
  const std::string version = expect_done({"--version"}).out;
  EXPECT_NE(version.find(stamp.commit), std::string::npos) << version;
}

TEST_F(Resume, GoesOnAfterASignalAsIfNothingHadBeen) {
  const Arguments settings = {"--train.save_every=1000"};
  expect_done(train("whole", 150, settings));
  for (const int number : {SIGINT, SIGTERM}) {
    const std::string name = fmt::format("signal-{}", number);
    RunningProgram program(train(name, 150, settings));
    testing::wait_until([&] { return fs::exists(folder / name / "metrics.jsonl"); });
    program.send(number);
    const auto result = program.wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.out.find("stopped after step"), std::string::npos) << result.out;
    EXPECT_FALSE(fs::exists(folder / name / "export"));
    expect_done(resume(name));
    expect_same_state(name, "whole", 150);
    EXPECT_EQ(logged_steps(name), count_to(150));
  }
}

TEST_F(Resume, IsPossibleAfterASecondSignalEndedTheProcessAtOnce) {
  RunningProgram program(train("run", 100000, {"--train.save_every=1"}));
  testing::wait_until([&] { return fs::exists(checkpoint("run", 2)); });
  program.send(SIGINT);
  program.send(SIGTERM);  // another one, for two of a kind may arrive as one
  EXPECT_EQ(program.wait().exit_code, 130);
  const auto result =
      run_program(resume("run", {"--train.max_steps=50", "--train.allow_change=train.max_steps"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("resumed from"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace draftsmith::app
