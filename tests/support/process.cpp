// SPDX-License-Identifier: Apache-2.0
#include "tests/support/process.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"

#include "tests/support/temp_folder.h"

namespace draftsmith::testing {

ProcessResult run_program(const std::vector<std::string>& arguments) {
  const TempFolder folder;
  const auto out = folder.write("out", "");
  const auto err = folder.write("err", "");
  const pid_t child = ::fork();
  DS_CHECK(child >= 0);
  if (child == 0) {
    ::dup2(::open(out.c_str(), O_WRONLY), STDOUT_FILENO);
    ::dup2(::open(err.c_str(), O_WRONLY), STDERR_FILENO);
    std::vector<char*> argv = {const_cast<char*>(DS_PROGRAM)};
    for (const auto& argument : arguments)
      argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    ::execv(DS_PROGRAM, argv.data());
    ::_exit(127);
  }
  int status = 0;
  DS_CHECK(::waitpid(child, &status, 0) == child);
  ProcessResult result;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = read_file(out);
  result.err = read_file(err);
  return result;
}

}  // namespace draftsmith::testing
