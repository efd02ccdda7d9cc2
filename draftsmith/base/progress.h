// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "draftsmith/base/stopwatch.h"

namespace draftsmith {

/// "3 s", "4 min 05 s", "2 h 07 min".
std::string format_duration(double seconds);

/// "12", "4.5k", "1.2M".
std::string format_count(double value);

/// Progress of a long work on stderr: on a terminal one line that is rewritten, with a bar;
/// elsewhere plain lines, at most one every few seconds. The log copy gets the plain lines.
class Progress {
 public:
  /// `first` of `total` units are done already (a resumed run); rates count from there.
  Progress(std::string label, int64_t total, std::string unit, int64_t first = 0);

  /// `done` units of `total`; `details` stands before rate and ETA. `force_line` writes a plain
  /// line whatever the time since the last one.
  void update(int64_t done, std::string_view details = "", bool force_line = false);

  /// Ends the rewritten line and says how long it took.
  void finish(std::string_view details = "");

  double seconds() const { return watch_.seconds(); }

 private:
  std::string label_;
  std::string unit_;
  int64_t total_;
  int64_t first_;
  int64_t done_;
  bool is_terminal_;
  Stopwatch watch_;
  double last_shown_ = -1e9;  // seconds
  double last_line_ = 0;      // seconds
};

}  // namespace draftsmith
