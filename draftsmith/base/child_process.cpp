// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/base/child_process.h"

#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "draftsmith/base/error.h"

namespace draftsmith {
namespace {

[[noreturn]] void fail_start(int reason) {
  throw DeviceError(
      {.what = "child process",
       .expected = "to start one",
       .got = std::strerror(reason),
       .hint = "more free memory"});
}

struct Pipe {
  int read_end = -1;
  int write_end = -1;
  Pipe() {
    int ends[2];
    if (::pipe(ends) != 0) fail_start(errno);
    read_end = ends[0];
    write_end = ends[1];
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    close_write_end();
    ::close(read_end);
  }
  void close_write_end() {
    if (write_end >= 0) ::close(write_end);
    write_end = -1;
  }
};

/// Reads both pipes until their writers are gone, whichever speaks first.
void read_both(const Pipe& out, const Pipe& err, ChildResult& result) {
  std::array<pollfd, 2> ends = {{{out.read_end, POLLIN, 0}, {err.read_end, POLLIN, 0}}};
  std::array<std::string*, 2> texts = {&result.out, &result.err};
  std::array<char, 4096> buffer;
  for (size_t num_open = 2; num_open > 0;) {
    if (::poll(ends.data(), ends.size(), -1) < 0 && errno != EINTR) fail_start(errno);
    for (size_t i = 0; i < ends.size(); ++i) {
      if (ends[i].fd < 0 || ends[i].revents == 0) continue;
      const ssize_t count = ::read(ends[i].fd, buffer.data(), buffer.size());
      if (count > 0) texts[i]->append(buffer.data(), static_cast<size_t>(count));
      if (count == 0 || (count < 0 && errno != EINTR)) {
        ends[i].fd = -1;  // poll passes over it
        --num_open;
      }
    }
  }
}

}  // namespace

ChildResult run_self(const std::vector<std::string>& arguments) {
  Pipe out;
  Pipe err;
  std::vector<char*> argv = {const_cast<char*>("draftsmith")};
  for (const std::string& argument : arguments)
    argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  for (const auto& [pipe, number] :
       {std::pair(&out, STDOUT_FILENO), std::pair(&err, STDERR_FILENO)}) {
    ::posix_spawn_file_actions_adddup2(&actions, pipe->write_end, number);
    ::posix_spawn_file_actions_addclose(&actions, pipe->write_end);
    ::posix_spawn_file_actions_addclose(&actions, pipe->read_end);
  }
  pid_t child = 0;
  const int reason =
      ::posix_spawn(&child, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (reason != 0) fail_start(reason);
  out.close_write_end();
  err.close_write_end();

  ChildResult result;
  read_both(out, err, result);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace draftsmith
