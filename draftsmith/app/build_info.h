// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace draftsmith::app {

/// What the program was built from.
struct BuildInfo {
  std::string commit = "unknown";  // of the git tree
  bool is_changed = false;         // whether tracked files differed from it
};

}  // namespace draftsmith::app
