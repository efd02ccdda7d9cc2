// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>

#include <ATen/record_function.h>

#include "draftsmith/memory/host_allocator.h"

namespace draftsmith::memory {

/// Names what the calling thread runs from here to the end of the scope: in the error of a tensor
/// beyond the budget, and in the trace of train.profile_steps. `name` is a literal.
class Stage {
 public:
  explicit Stage(const char* name) : record_(at::RecordScope::USER_SCOPE) {
    begin_host_phase(name);
    if (record_.isActive()) record_.before(name);
  }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
  ~Stage() { end_host_phase(std::uncaught_exceptions() > exceptions_); }

 private:
  at::RecordFunction record_;
  int exceptions_ = std::uncaught_exceptions();  // under way when it began
};

}  // namespace draftsmith::memory
