// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "draftsmith/train/checkpoint_list.h"

#include "tests/app/world.h"

namespace draftsmith::app {
namespace {

namespace fs = std::filesystem;
using testing::operator+;
using testing::Arguments;
using testing::ProgramWorld;
using SeveralProcesses = testing::ProgramRuns;

testing::ProcessResult run_alone(const Arguments& arguments) {
  return testing::start_alone(arguments)->wait();
}

TEST_F(SeveralProcesses, MakeTheStepsOfOne) {
  const auto arguments = train("two", 4, {"--train.shard_optimizer=true"});
  ProgramWorld({arguments, arguments}).expect_done();
  const auto alone = run_alone(train("alone", 4, {"--train.accumulation=2"}));
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  const auto two = metrics("two");
  const auto one = metrics("alone");
  ASSERT_EQ(two.size(), 4U);
  ASSERT_EQ(one.size(), 4U);
  for (size_t i = 0; i < 4; ++i)
    for (const char* key : {"loss", "grad_norm"}) {
      const double value = one[i].at(key).get<double>();
      EXPECT_NEAR(two[i].at(key).get<double>(), value, 1e-5 * value) << i << " " << key;
    }
  EXPECT_TRUE(fs::exists(folder / "two/export/model.safetensors"));
}

TEST_F(SeveralProcesses, AndThreadsOfOneAreTheSameBitForBit) {
  const auto processes = train("processes", 5);
  ProgramWorld({processes, processes}).expect_done();
  const auto threads = run_alone(train("threads", 5, {"--pipeline.drafter_workers=2"}));
  ASSERT_EQ(threads.exit_code, 0) << threads.err;
  expect_same_state("processes", "threads", 5);
}

TEST_F(SeveralProcesses, OrFiveTargetsAheadOfThreeDraftersInOneChangeNoBit) {
  const Arguments more = {
      "--pipeline.drafter_workers=3", "--data.held_out=0.2", "--train.eval_every=2",
      "--train.save_every=2", "--train.shard_optimizer=true"};
  const auto in_turn =
      run_alone(train("in-turn", 6, more + Arguments{"--pipeline.target_workers=0"}));
  ASSERT_EQ(in_turn.exit_code, 0) << in_turn.err;
  const auto ahead = run_alone(train("ahead", 6, more + Arguments{"--pipeline.target_workers=5"}));
  ASSERT_EQ(ahead.exit_code, 0) << ahead.err;
  expect_same_state("ahead", "in-turn", 6);
  const auto waits = metrics("ahead").back().at("wait");
  for (const char* worker :
       {"loader", "target 0", "target 4", "drafter 0", "drafter 2", "drafter 2 for others"})
    EXPECT_TRUE(waits.contains(worker)) << waits.dump();
  EXPECT_NE(ahead.err.find(" of 5 + 3 workers were the bottleneck"), std::string::npos)
      << ahead.err;
}

TEST_F(SeveralProcesses, HaveTheBitsOfWorkersWhoseDevicesAreNamed) {
  const Arguments workers = {"--pipeline.drafter_workers=2", "--pipeline.target_workers=3"};
  const Arguments named = {
      "--pipeline.drafter_devices=cpu,cpu", "--pipeline.target_devices=cpu,cpu,cpu"};
  for (const auto& [name, more] : {std::pair("named", named), std::pair("unnamed", Arguments{})}) {
    const auto done = run_alone(train(name, 4, workers + more));
    ASSERT_EQ(done.exit_code, 0) << done.err;
  }
  expect_same_state("named", "unnamed", 4);
}

TEST_F(SeveralProcesses, TakeStatesFromTargetsElsewhereBitForBit) {
  const Arguments evaluated = {"--data.held_out=0.2", "--train.eval_every=2"};
  const auto both = train("both", 4, evaluated);
  const auto of_both = ProgramWorld({both, both}).wait();
  const auto drafter = train("split", 4, evaluated + Arguments{"--pipeline.role=drafter"});
  const auto server = train("split", 4, {"--pipeline.role=target", "--pipeline.target_workers=2"});
  const auto of_split = ProgramWorld({drafter, server, drafter}).wait();
  for (const auto& results : {of_both, of_split})
    for (const auto& result : results)
      EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_same_state("both", "split", 4);

  // The first process answers for the workers of all.
  const auto expect_workers = [&](const char* name, std::vector<std::string> workers) {
    const auto line = metrics(name).back().at("wait");
    for (const char* drafter : {"drafter 0", "drafter 1"})
      for (const char* what : {"", " for others"})
        workers.push_back(fmt::format("{}{}", drafter, what));
    EXPECT_EQ(line.size(), workers.size()) << line.dump();
    for (const auto& worker : workers)
      EXPECT_TRUE(line.contains(worker)) << worker << " of " << line.dump();
  };
  expect_workers(
      "both", {"loader", "loader beside drafter 1", "target 0", "target 0 beside drafter 1"});
  expect_workers("split", {"loader", "loader beside drafter 1", "target 0", "target 1"});
  const auto names_bottleneck = [](const testing::ProcessResult& result) {
    return result.err.find(" of 2 + 2 workers were the bottleneck") != std::string::npos;
  };
  EXPECT_TRUE(names_bottleneck(of_both[0])) << of_both[0].err;
  EXPECT_FALSE(names_bottleneck(of_both[1])) << of_both[1].err;
  EXPECT_TRUE(names_bottleneck(of_split[0])) << of_split[0].err;
}

TEST_F(SeveralProcesses, StopTogetherAndGoOnInAnotherNumber) {
  const auto arguments = train("run", 100'000);
  ProgramWorld world({arguments, arguments});
  testing::wait_until([&] { return fs::exists(folder / "run/metrics.jsonl"); });
  world.processes[1]->send(SIGTERM);  // the one that does not write
  world.expect_done();
  const auto newest = train::find_newest_checkpoint(folder / "run");
  ASSERT_TRUE(newest.has_value());
  const int64_t stopped = formats::read_json_file(*newest / "state.json").at("step");
  EXPECT_GT(stopped, 0);
  const auto more = fmt::format("--train.max_steps={}", stopped + 2);
  const auto resumed = run_alone(resume("run", {"--train.allow_change=train.max_steps", more}));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("1 ranks go on with what 2 began"), std::string::npos) << resumed.err;
  const auto state = formats::read_json_file(
      folder / "run" / fmt::format("checkpoints/step-{}", stopped + 2) / "state.json");
  EXPECT_EQ(state.at("batches"), 2 * stopped + 2);
}

TEST_F(SeveralProcesses, AllEndWithTheErrorOfOne) {
  // The folder of another run is in the way of the first process; the other one tells of it.
  const auto arguments = train("run", 4);
  folder.write("run/settings.toml", "");
  const auto results = ProgramWorld({arguments, arguments}).wait();
  EXPECT_EQ(results[0].exit_code, 2) << results[0].err;
  EXPECT_EQ(results[1].exit_code, 5) << results[1].err;
  EXPECT_NE(results[1].err.find("the end of process 0: train.out"), std::string::npos)
      << results[1].err;
}

/// A split run of two drafters' processes (0 and 2) and one of targets (1), of which one is killed.
/// Each other one must end before the timeout with an error that names it.
struct SplitRoles : testing::ProgramRuns {
  static constexpr double kTimeout = 20;  // seconds; of pipeline.timeout

  void expect_ends_without(size_t dead) {
    const Arguments timeout = {fmt::format("--pipeline.timeout={}", kTimeout)};
    const auto drafter = train("run", 100'000, timeout + Arguments{"--pipeline.role=drafter"});
    const auto server = train("run", 100'000, timeout + Arguments{"--pipeline.role=target"});
    ProgramWorld world({drafter, server, drafter});
    testing::wait_until(
        [&] { return fs::exists(folder / "run/metrics.jsonl") && metrics("run").size() > 3; });
    const auto begin = std::chrono::steady_clock::now();
    world.processes[dead]->send(SIGKILL);
    const auto results = world.wait();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(seconds.count(), kTimeout);
    for (size_t i = 0; i < results.size(); ++i) {
      if (i == dead) continue;
      const auto& text = results[i].err;
      EXPECT_EQ(results[i].exit_code, 5) << text;
      EXPECT_NE(text.find(fmt::format("(process {} on ", dead)), std::string::npos) << i << text;
      EXPECT_NE(text.find("sign of life"), std::string::npos) << i << text;
    }
  }
};

TEST_F(SplitRoles, EndWhenTheTargetsAreKilledAndNameThem) { expect_ends_without(1); }

TEST_F(SplitRoles, EndWhenTheFirstDrafterIsKilledAndNameIt) { expect_ends_without(0); }

TEST_F(SplitRoles, EndWhenAnotherDrafterIsKilledAndNameIt) { expect_ends_without(2); }

TEST_F(SeveralProcesses, MeetInTheStoreThatTheirLauncherKeeps) {
  // As torchrun's agent does.
  c10d::TCPStoreOptions options;
  options.port = 0;  // any
  options.isServer = true;
  options.waitWorkers = false;
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  const testing::Environment environment(testing::Variables{
      {"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RESTART_COUNT", "3"}});
  const auto arguments = train("run", 3);
  std::vector<std::unique_ptr<testing::RunningProgram>> processes;
  for (int rank = 0; rank < 2; ++rank)
    processes.push_back(testing::start_in_world(arguments, rank, 2, store->getPort()));
  for (const auto& process : processes) {
    const auto result = process->wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  EXPECT_EQ(logged_steps("run"), count_to(3));
  EXPECT_TRUE(store->check({"draftsmith/attempt_3/text/host/1"}));
}

TEST_F(SeveralProcesses, RefuseSettingsThatDiffer) {
  const auto results = ProgramWorld({train("run", 4), train("run", 4, {"--train.lr=0.5"})}).wait();
  EXPECT_EQ(results[1].exit_code, 2) << results[1].err;
  testing::expect_message_form(testing::last_line(results[1].err));
  EXPECT_NE(results[1].err.find("train.lr"), std::string::npos) << results[1].err;
  EXPECT_NE(results[0].exit_code, 0);
}

TEST_F(SeveralProcesses, RefuseRolesThatMakeNoRun) {
  const auto target = train("run", 4, {"--pipeline.role=target"});
  for (const auto& result : ProgramWorld({target, target}).wait()) {
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_NE(result.err.find("pipeline.role"), std::string::npos) << result.err;
  }
}

TEST_F(SeveralProcesses, RefuseAWorldWithoutAnAddress) {
  const testing::Environment environment(testing::Variables{{"RANK", "0"}, {"WORLD_SIZE", "2"}});
  const auto result = testing::run_program(train("run", 4));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("MASTER_ADDR"), std::string::npos) << result.err;
  testing::expect_message_form(testing::last_line(result.err));
}

TEST_F(SeveralProcesses, SayWhoDidNotCome) {
  const auto result =
      testing::start_in_world(
          train("run", 4, {"--pipeline.timeout=1"}), 0, 2, testing::find_free_port())
          ->wait();
  EXPECT_EQ(result.exit_code, 5) << result.err;
  EXPECT_NE(result.err.find("process 0 of 2"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace draftsmith::app
