// SPDX-License-Identifier: Apache-2.0
// Two machines in small: processes in network namespaces of the test's own, which only a pair of
// virtual devices joins.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>

#include "tests/app/world.h"

namespace draftsmith::app {
namespace {

namespace fs = std::filesystem;
using testing::operator+;
using testing::Arguments;
using testing::RunningProgram;

constexpr double kTimeout = 20;  // seconds; of pipeline.timeout

bool run(const std::string& command) {
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

/// Two namespaces with the addresses 10.77.0.1 and 10.77.0.2.
struct TwoNamespaces {
  std::string names[2];
  bool is_made = false;

  TwoNamespaces() {
    for (int i = 0; i < 2; ++i)
      names[i] = fmt::format("ds{}{}", ::getpid(), i == 0 ? "a" : "b");
    is_made = run("ip netns add " + names[0]) && run("ip netns add " + names[1]) &&
              run(fmt::format(
                  "ip link add ds0 netns {} type veth peer name ds1 netns {}", names[0], names[1]));
    for (int i = 0; i < 2 && is_made; ++i)
      is_made = run(fmt::format("ip -n {} addr add 10.77.0.{}/24 dev ds{}", names[i], i + 1, i)) &&
                run(fmt::format("ip -n {} link set ds{} up", names[i], i)) &&
                run(fmt::format("ip -n {} link set lo up", names[i]));
  }
  ~TwoNamespaces() {
    for (const auto& name : names)
      run("ip netns del " + name);
  }
  /// Nothing comes through any longer, and nobody is told.
  void cut() const { EXPECT_TRUE(run(fmt::format("ip -n {} link set ds1 down", names[1]))); }
};

/// This thread, and what it starts, is in the namespace.
class EnterNamespace {
 public:
  explicit EnterNamespace(const std::string& name)
      : outside_(::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC)) {
    const int fd = ::open(("/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(::setns(fd, CLONE_NEWNET), 0);
    ::close(fd);
  }
  EnterNamespace(const EnterNamespace&) = delete;
  EnterNamespace& operator=(const EnterNamespace&) = delete;
  ~EnterNamespace() {
    EXPECT_EQ(::setns(outside_, CLONE_NEWNET), 0);
    ::close(outside_);
  }

 private:
  int outside_;
};

struct TwoMachines : testing::ProgramRuns {
  TwoNamespaces machines;
  std::unique_ptr<RunningProgram> processes[2];

  void SetUp() override {
    if (!machines.is_made)
      GTEST_SKIP() << "network namespaces need root and iproute2 (apt-get install iproute2)";
  }

  void start(int64_t max_steps, const Arguments& more = {}) {
    const auto arguments =
        train("run", max_steps, Arguments{fmt::format("--pipeline.timeout={}", kTimeout)} + more);
    for (int i = 0; i < 2; ++i) {
      const EnterNamespace inside(machines.names[i]);
      processes[i] = testing::start_in_world(arguments, i, 2, 29500, "10.77.0.1");
    }
  }

  void start_and_wait_for_steps() {
    start(100'000, {"--train.save_every=1"});
    testing::wait_until(
        [&] { return fs::exists(folder / "run/metrics.jsonl") && metrics("run").size() > 3; });
  }

  /// It ends with an error that names `dead` before the timeout.
  void expect_ends(int i, const std::string& dead) {
    const auto begin = std::chrono::steady_clock::now();
    const auto result = processes[i]->wait();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    EXPECT_EQ(result.exit_code, 5) << result.err;
    EXPECT_LT(seconds.count(), kTimeout);
    // Whatever the connections' library warns of as well.
    const size_t begin_of_message = result.err.find(dead);
    ASSERT_NE(begin_of_message, std::string::npos) << result.err;
    const auto message = result.err.substr(
        begin_of_message, result.err.find('\n', begin_of_message) - begin_of_message);
    EXPECT_NE(message.find(": expected a sign of life"), std::string::npos) << message;
    testing::expect_message_form(message);
  }
};

TEST_F(TwoMachines, TrainTogether) {
  start(5);
  for (auto& process : processes) {
    const auto result = process->wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  EXPECT_EQ(logged_steps("run"), count_to(5));
}

TEST_F(TwoMachines, EndWhenTheSecondIsKilledAndNameIt) {
  start_and_wait_for_steps();
  processes[1]->send(SIGKILL);
  expect_ends(0, "rank 1 (process 1");
}

TEST_F(TwoMachines, EndWhenTheFirstIsKilledAndNameIt) {
  start_and_wait_for_steps();
  processes[0]->send(SIGKILL);
  expect_ends(1, "rank 0 (process 0");
}

TEST_F(TwoMachines, EndWhenTheLinkIsCutAndNameTheOther) {
  start_and_wait_for_steps();
  machines.cut();
  expect_ends(0, "rank 1 (process 1");
  expect_ends(1, "rank 0 (process 0");
}

}  // namespace
}  // namespace draftsmith::app
