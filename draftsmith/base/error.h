// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace draftsmith {

/// The parts of a message; empty parts are left out.
/// Printed as `what: expected X, got Y (where). Try Z.`
struct ErrorText {
  std::string what = {};      // the setting, file or tensor that is wrong
  std::string expected = {};  // what would have been right
  std::string got = {};       // what was found
  std::string where = {};     // file, row or command line
  std::string hint = {};      // what to try, an imperative without a full stop
};

std::string format_error(const ErrorText& text);

/// An error that a user can act on; `exit_code` is the program's exit status.
class Error : public std::runtime_error {
 public:
  Error(const ErrorText& text, int exit_code)
      : std::runtime_error(format_error(text)), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

/// The user's settings are wrong.
class ConfigError : public Error {
 public:
  explicit ConfigError(const ErrorText& text) : Error(text, 2) {}
};

/// A dataset, weights or a checkpoint on disk are wrong.
class DataError : public Error {
 public:
  explicit DataError(const ErrorText& text) : Error(text, 3) {}
};

/// Tensors do not fit each other.
class ShapeError : public Error {
 public:
  explicit ShapeError(const ErrorText& text) : Error(text, 4) {}
};

/// A device is missing or out of memory.
class DeviceError : public Error {
 public:
  explicit DeviceError(const ErrorText& text) : Error(text, 5) {}
};

/// Training produced non-finite numbers again and again.
class DivergenceError : public Error {
 public:
  explicit DivergenceError(const ErrorText& text) : Error(text, 6) {}
};

/// Throws std::logic_error, which `main` reports as a bug of ours (exit 70).
[[noreturn]] void fail_check(const char* condition, const char* file, int line);

}  // namespace draftsmith

/// For our own bugs only; users' mistakes get one of the errors above.
#define DS_CHECK(condition)               \
  (static_cast<bool>(condition) ? void(0) \
                                : ::draftsmith::fail_check(#condition, __FILE__, __LINE__))
