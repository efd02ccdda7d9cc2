// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace draftsmith::pipeline {

/// Who of several processes lives. Each one counts in the store twice a second; who wants to know
/// why somebody does not answer looks whose count stands still.
/// The store may hang when its machine is gone, so only a thread of this class talks to it, and
/// nobody waits for that thread without a limit.
class LifeSigns {
 public:
  /// What `find_cause` needs at most.
  static constexpr std::chrono::milliseconds kMostTime{4000};

  /// In the store: how many processes know why the run ended.
  static constexpr const char* kReadersKey = "end/readers";

  /// The reason that somebody announced, or nothing.
  static std::string read_reason(c10d::Store& store);

  /// With one process there is no thread: only its own announcements are known.
  LifeSigns(c10::intrusive_ptr<c10d::Store> store, int64_t process, int64_t processes);
  ~LifeSigns();
  LifeSigns(const LifeSigns&) = delete;
  LifeSigns& operator=(const LifeSigns&) = delete;

  /// Leaves the reason of a rank's end for the others; of several only the first counts.
  void announce(const std::string& reason);

  struct Cause {
    std::string reason;   // that a rank announced; else empty
    int64_t process = -1; // that shows no sign of life; -1 = all do
  };
  /// Waits for an answer, `kMostTime` at most.
  Cause find_cause();

 private:
  struct Shared;
  static void run(const std::shared_ptr<Shared>& shared);

  std::shared_ptr<Shared> shared_;
};

}  // namespace draftsmith::pipeline
