// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace draftsmith {

struct ChildResult {
  int exit_code = 0;  // 128 + signal if it was killed
  std::string out;    // all of stdout
  std::string err;    // all of stderr
};

/// Runs this very program anew with other arguments and waits for its end: what it finds it has
/// from disk, not from our memory. Errors: DeviceError if no process can be started.
ChildResult run_self(const std::vector<std::string>& arguments);

}  // namespace draftsmith
