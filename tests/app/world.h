// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/app/tiny_program_run.h"

namespace draftsmith::testing {

/// A TCP port of the loopback device that nobody uses now.
inline int find_free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(fd, generic, length), 0);
  EXPECT_EQ(::getsockname(fd, generic, &length), 0);
  ::close(fd);
  return ntohs(address.sin_port);
}

using Variables = std::map<std::string, std::string>;

/// Variables that programs started while it lives inherit.
class Environment {
 public:
  explicit Environment(const Variables& variables) {
    for (const auto& [name, value] : variables) {
      names_.push_back(name);
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment() {
    for (const auto& name : names_)
      ::unsetenv(name.c_str());
  }

 private:
  std::vector<std::string> names_;
};

/// One compute thread, so that sums have one order however ranks are spread over processes.
inline std::unique_ptr<RunningProgram> start_alone(const Arguments& arguments) {
  const Environment environment(Variables{{"OMP_NUM_THREADS", "1"}});
  return std::make_unique<RunningProgram>(arguments);
}

/// With what torchrun would set.
inline std::unique_ptr<RunningProgram> start_in_world(
    const Arguments& arguments,
    int64_t rank,
    int64_t size,
    int port,
    const std::string& address = "127.0.0.1") {
  const Environment environment(Variables{
      {"RANK", fmt::format("{}", rank)},
      {"WORLD_SIZE", fmt::format("{}", size)},
      {"MASTER_ADDR", address},
      {"MASTER_PORT", fmt::format("{}", port)},
      {"OMP_NUM_THREADS", "1"}});
  return std::make_unique<RunningProgram>(arguments);
}

/// Processes of one run on this machine.
struct ProgramWorld {
  std::vector<std::unique_ptr<RunningProgram>> processes;

  /// Process i has the arguments `arguments[i]`.
  explicit ProgramWorld(const std::vector<Arguments>& arguments) {
    const int port = find_free_port();
    const auto size = static_cast<int64_t>(arguments.size());
    for (int64_t i = 0; i < size; ++i)
      processes.push_back(start_in_world(arguments[static_cast<size_t>(i)], i, size, port));
  }

  std::vector<ProcessResult> wait() {
    std::vector<ProcessResult> results;
    for (auto& process : processes)
      results.push_back(process->wait());
    return results;
  }

  void expect_done() {
    for (const auto& result : wait())
      EXPECT_EQ(result.exit_code, 0) << result.err;
  }
};

}  // namespace draftsmith::testing
