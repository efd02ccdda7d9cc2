// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "draftsmith/base/error.h"

namespace draftsmith::memory {

/// What an OutOfMemory says, whoever had none.
inline ErrorText describe_lack(std::string expected, std::string got, const char* phase) {
  return {
      .what = "memory for a tensor",
      .expected = std::move(expected),
      .got = std::move(got),
      .where = phase == nullptr ? "" : phase,
      .hint = "draftsmith plan, a smaller --data.tokens_per_batch or --data.num_anchors"};
}

}  // namespace draftsmith::memory
