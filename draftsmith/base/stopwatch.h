// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace draftsmith {

/// Seconds since construction or the last restart.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  /// Returns the seconds so far and starts again from zero.
  double restart() {
    const double elapsed = seconds();
    start_ = Clock::now();
    return elapsed;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

}  // namespace draftsmith
