// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace draftsmith::testing {

struct ProcessResult {
  int exit_code = 0;
  std::string out;
  std::string err;
};

/// Runs the draftsmith program with these arguments and waits for its end.
ProcessResult run_program(const std::vector<std::string>& arguments);

}  // namespace draftsmith::testing
