// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/base/error.h"

#include <fmt/format.h>

namespace draftsmith {

std::string format_error(const ErrorText& text) {
  std::string message = text.what;
  if (!text.expected.empty()) message += ": expected " + text.expected;
  if (!text.got.empty()) message += (text.expected.empty() ? ": got " : ", got ") + text.got;
  if (!text.where.empty()) message += " (" + text.where + ")";
  message += ".";
  if (!text.hint.empty()) message += " Try " + text.hint + ".";
  return message;
}

void fail_check(const char* condition, const char* file, int line) {
  throw std::logic_error(fmt::format("internal check failed: {} ({}:{})", condition, file, line));
}

}  // namespace draftsmith
