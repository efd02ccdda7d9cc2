// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include "draftsmith/data/feature_format.h"
#include "draftsmith/train/checkpoint_list.h"

#include "tests/app/tiny_program_run.h"

namespace draftsmith::app {
namespace {

namespace fs = std::filesystem;
using testing::operator+;
using testing::Arguments;
using testing::RunningProgram;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int64_t kSteps = 40;

/// Kills runs that save after every step at random moments, resumes them each time, and compares
/// what they come to with the run that nobody killed.
struct Kill : testing::ProgramRuns {
  double first_step = 0;  // seconds from the start of the unbroken run
  double end = 0;
  int kills = 0;
  int finished = 0;
  int64_t run = 0;
  int64_t newest = -1;  // checkpoint of the current run

  std::string name() const { return fmt::format("run-{}", run); }

  void run_unbroken() {
    const auto start = Clock::now();
    RunningProgram program(train("whole", kSteps, {"--train.save_every=1"}));
    testing::wait_until([&] { return fs::exists(folder / "whole/metrics.jsonl"); });
    first_step = Seconds(Clock::now() - start).count();
    ASSERT_EQ(program.wait().exit_code, 0);
    end = Seconds(Clock::now() - start).count();
  }

  Arguments start_or_resume() const {
    const bool has_run = fs::exists(folder / name() / "settings.toml");
    return has_run ? resume(name()) : train(name(), kSteps, {"--train.save_every=1"});
  }

  /// The run that came to its end is the unbroken one; the next gets a folder of its own.
  void finish(const testing::ProcessResult& result) {
    ASSERT_EQ(result.exit_code, 0) << result.err;
    expect_same_state(name(), "whole", kSteps);
    EXPECT_TRUE(
        read_file(folder / name() / "export/model.safetensors") ==
        read_file(folder / "whole/export/model.safetensors"));
    EXPECT_EQ(logged_steps(name()), count_to(kSteps));
    fs::remove_all(folder / name());
    ++finished;
    ++run;
    newest = -1;
  }

  /// A complete checkpoint, once there, is never lost again.
  void check_newest() {
    ::testing::internal::CaptureStderr();  // warnings about what the kill left
    const auto found = train::find_newest_checkpoint(folder / name());
    ::testing::internal::GetCapturedStderr();
    const int64_t step = found ? train::read_progress(*found).step : -1;
    EXPECT_GE(step, newest);
    newest = step;
  }

  void kill_at(double moment) {
    const auto start = Clock::now();
    RunningProgram program(start_or_resume());
    while (!program.has_ended() && Seconds(Clock::now() - start).count() < moment)
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    if (program.has_ended()) {
      // Other programs may have slowed the unbroken run down: later moments would meet nothing.
      end = std::max(first_step, std::min(end, Seconds(Clock::now() - start).count()));
      return finish(program.wait());
    }
    program.send(SIGKILL);
    if (program.wait().exit_code != 128 + SIGKILL) return;  // it was faster than the signal
    ++kills;
    check_newest();
  }

  void kill_times(int times, unsigned seed) {
    run_unbroken();
    std::mt19937 random(seed);
    // Loading is most of the time and the least of the danger: a tenth of the moments.
    std::uniform_real_distribution<double> in_training(
        first_step, first_step + 0.6 * (end - first_step));
    std::uniform_real_distribution<double> anywhere(0, first_step);
    while (kills < times && !HasFatalFailure())
      kill_at(random() % 10 == 0 ? anywhere(random) : in_training(random));
    const auto result = testing::run_program(start_or_resume());
    finish(result);
    RecordProperty("kills", kills);
    RecordProperty("finished", finished);
    std::printf("%d kills, %d runs came to their end\n", kills, finished);
    EXPECT_EQ(kills, times);
    EXPECT_GE(finished, times / 20);
  }
};

TEST_F(Kill, TwentyTimesLeavesTheWeightsOfTheUnbrokenRun) { kill_times(20, 1); }

// The folder is there with all that it takes to go on, from its first moment.
struct KillExtract : testing::ProgramRuns {};
TEST_F(KillExtract, LeavesNothingOrAFolderThatGoesOn) {
  const auto extract = [&](const std::string& name) {
    return Arguments{
        "extract", "--target.path=" + target.string(), "--data.path=" + dataset.string(),
        "--drafter.target_layer_ids=0,2", "--extract.out=" + (folder / name).string()};
  };
  const auto features = [&](const std::string& name) {
    return read_file(data::feature_shard(folder / name, 0));
  };
  const auto start = Clock::now();
  expect_done(extract("whole"));
  const double end = Seconds(Clock::now() - start).count();
  for (int i = 0; i < 12; ++i) {
    const std::string name = fmt::format("killed-{}", i);
    RunningProgram program(extract(name));
    if (i < 8) {  // as soon as the folder appears
      while (!fs::exists(folder / name) && !program.has_ended()) {
      }
    } else {
      std::this_thread::sleep_for(Seconds(end * (0.2 + 0.2 * (i - 8))));
    }
    program.send(SIGKILL);
    program.wait();
    EXPECT_TRUE(!fs::exists(folder / name) || data::is_feature_folder(folder / name));
    const bool is_complete =
        fs::exists(folder / name) && data::read_feature_header(folder / name).num_shards > 0;
    if (!is_complete) expect_done(extract(name));
    EXPECT_TRUE(features(name) == features("whole")) << name;
    EXPECT_FALSE(fs::exists(folder / fmt::format(".{}.partial", name)));
  }
}

using SlowKill = Kill;
TEST_F(SlowKill, TwoHundredTimesLeavesTheWeightsOfTheUnbrokenRun) { kill_times(200, 2); }

}  // namespace
}  // namespace draftsmith::app
