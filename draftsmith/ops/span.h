// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace draftsmith::ops {

/// Tokens begin .. end - 1 of a row that belong together: a document, or a row without its
/// padding. Nothing before `begin` is seen.
struct Span {
  int64_t row;
  int64_t begin;
  int64_t end;
};

}  // namespace draftsmith::ops
