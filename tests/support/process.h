// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "tests/support/temp_folder.h"

namespace draftsmith::testing {

struct ProcessResult {
  int exit_code = 0;  // 128 + the signal that ended it
  std::string out;
  std::string err;
};

/// The draftsmith program while it runs.
class RunningProgram {
 public:
  /// `prefix` is a program with arguments that starts this one, as `env` does.
  explicit RunningProgram(
      const std::vector<std::string>& arguments, const std::vector<std::string>& prefix = {});
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;
  ~RunningProgram();  // kills it if nobody waited

  void send(int signal) const;
  /// Whether it has ended; never waits.
  bool has_ended();
  ProcessResult wait();

 private:
  TempFolder folder_;
  pid_t child_;
  bool has_ended_ = false;
  int status_ = 0;
};

/// Runs the draftsmith program with these arguments and waits for its end.
ProcessResult run_program(const std::vector<std::string>& arguments);

}  // namespace draftsmith::testing
