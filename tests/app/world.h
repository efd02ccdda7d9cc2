// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

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

/// `env` with what torchrun would set. One compute thread, so that sums have one order however
/// ranks are spread over processes.
inline Arguments world_environment(
    int64_t rank, int64_t size, int port, const std::string& address = "127.0.0.1") {
  return {"env",
          fmt::format("RANK={}", rank),
          fmt::format("WORLD_SIZE={}", size),
          "MASTER_ADDR=" + address,
          fmt::format("MASTER_PORT={}", port),
          "OMP_NUM_THREADS=1"};
}

/// Processes of one run on this machine.
struct ProgramWorld {
  std::vector<std::unique_ptr<RunningProgram>> processes;

  /// Process i has the arguments `arguments[i]`.
  explicit ProgramWorld(const std::vector<Arguments>& arguments) {
    const int port = find_free_port();
    const auto size = static_cast<int64_t>(arguments.size());
    for (int64_t i = 0; i < size; ++i)
      processes.push_back(std::make_unique<RunningProgram>(
          arguments[static_cast<size_t>(i)], world_environment(i, size, port)));
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
