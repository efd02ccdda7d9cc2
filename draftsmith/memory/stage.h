// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/record_function.h>

#include "draftsmith/memory/host_allocator.h"

namespace draftsmith::memory {

/// Names what runs from here to the end of the scope: in the error of a tensor beyond the budget,
/// and in the trace of train.profile_steps. `name` is a literal.
class Stage {
 public:
  explicit Stage(const char* name) : record_(at::RecordScope::USER_SCOPE) {
    name_host_phase(name);
    if (record_.isActive()) record_.before(name);
  }

 private:
  at::RecordFunction record_;
};

}  // namespace draftsmith::memory
