// SPDX-License-Identifier: Apache-2.0
#include "tests/support/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"

namespace draftsmith::testing {

RunningProgram::RunningProgram(
    const std::vector<std::string>& arguments, const std::vector<std::string>& prefix) {
  const auto out = folder_.write("out", "");
  const auto err = folder_.write("err", "");
  child_ = ::fork();
  DS_CHECK(child_ >= 0);
  if (child_ > 0) return;
  ::dup2(::open(out.c_str(), O_WRONLY), STDOUT_FILENO);
  ::dup2(::open(err.c_str(), O_WRONLY), STDERR_FILENO);
  std::vector<char*> argv;
  for (const auto& word : prefix)
    argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(const_cast<char*>(DS_PROGRAM));
  for (const auto& argument : arguments)
    argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ::execvp(argv[0], argv.data());
  ::_exit(127);
}

RunningProgram::~RunningProgram() {
  if (has_ended()) return;
  send(SIGKILL);
  ::waitpid(child_, &status_, 0);
}

void RunningProgram::send(int signal) const { ::kill(child_, signal); }

bool RunningProgram::has_ended() {
  if (!has_ended_) has_ended_ = ::waitpid(child_, &status_, WNOHANG) == child_;
  return has_ended_;
}

ProcessResult RunningProgram::wait() {
  if (!has_ended_) DS_CHECK(::waitpid(child_, &status_, 0) == child_);
  has_ended_ = true;
  ProcessResult result;
  result.exit_code = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  result.out = read_file(folder_ / "out");
  result.err = read_file(folder_ / "err");
  return result;
}

ProcessResult run_program(const std::vector<std::string>& arguments) {
  return RunningProgram(arguments).wait();
}

}  // namespace draftsmith::testing
