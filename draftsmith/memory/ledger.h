// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace draftsmith::memory {

/// Plays through the allocations of a computation without making them: what is alive, the most
/// that ever was, and what it consisted of then.
class Ledger {
 public:
  void add(const std::string& part, int64_t bytes) {
    parts_[part] += bytes;
    live_ += bytes;
    if (live_ > peak_) {
      peak_ = live_;
      parts_at_peak_ = parts_;
    }
  }
  void drop(const std::string& part, int64_t bytes) { add(part, -bytes); }

  /// Bytes that live only while something runs.
  void touch(const std::string& part, int64_t bytes) {
    add(part, bytes);
    drop(part, bytes);
  }

  /// Lets the peak start again from what is alive.
  void restart_peak() {
    peak_ = live_;
    parts_at_peak_ = parts_;
  }

  int64_t live() const { return live_; }
  int64_t peak() const { return peak_; }
  const std::map<std::string, int64_t>& parts_at_peak() const { return parts_at_peak_; }

 private:
  int64_t live_ = 0;
  int64_t peak_ = 0;
  std::map<std::string, int64_t> parts_, parts_at_peak_;
};

}  // namespace draftsmith::memory
