// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>

namespace draftsmith::pipeline {

/// What a worker did with its time.
struct WorkTime {
  double working = 0;   // seconds
  double waiting = 0;   // seconds, for a batch or for room to put one
  double meeting = 0;   // seconds, until all drafters' gradients were summed
  int64_t batches = 0;  // done

  double total() const { return working + waiting + meeting; }
  double waiting_share() const { return share(waiting); }
  double meeting_share() const { return share(meeting); }

  WorkTime& operator+=(const WorkTime& other) {
    working += other.working;
    waiting += other.waiting;
    meeting += other.meeting;
    batches += other.batches;
    return *this;
  }

 private:
  /// What was found out later (`count_as_waiting`) may be more than its own stretch.
  double share(double part) const { return total() > 0 ? std::min(part / total(), 1.0) : 0; }
};

/// The time of one worker, which says what it begins; others read it, the time that is running
/// included.
class WorkClock {
 public:
  void begin_work() { enter(State::kWorking, 0); }
  void begin_wait() { enter(State::kWaiting, 0); }
  void begin_meeting() { enter(State::kMeeting, 0); }
  /// Ends the work on a batch.
  void finish_batch() { enter(State::kWaiting, 1); }
  /// Until the next begin, time does not count.
  void rest() { enter(State::kResting, 0); }

  /// So much of the work so far was waiting, as was found out afterwards.
  void count_as_waiting(double seconds) {
    const std::lock_guard lock(mutex_);
    count();
    total_.working -= seconds;
    total_.waiting += seconds;
  }

  /// Counts what another clock has measured.
  void add(const WorkTime& time) {
    const std::lock_guard lock(mutex_);
    total_ += time;
  }

  /// Since construction or the last restart.
  WorkTime total() {
    const std::lock_guard lock(mutex_);
    count();
    return total_;
  }

  /// Since the last call.
  WorkTime take() {
    const std::lock_guard lock(mutex_);
    count();
    WorkTime part;
    part.working = total_.working - taken_.working;
    part.waiting = total_.waiting - taken_.waiting;
    part.meeting = total_.meeting - taken_.meeting;
    part.batches = total_.batches - taken_.batches;
    taken_ = total_;
    return part;
  }

  void restart() {
    const std::lock_guard lock(mutex_);
    total_ = taken_ = {};
    since_ = Clock::now();
  }

 private:
  using Clock = std::chrono::steady_clock;
  enum class State { kResting, kWorking, kWaiting, kMeeting };

  void enter(State state, int64_t batches) {
    const std::lock_guard lock(mutex_);
    count();
    total_.batches += batches;
    state_ = state;
  }

  void count() {
    const auto now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - since_).count();
    if (state_ == State::kWorking) total_.working += seconds;
    if (state_ == State::kWaiting) total_.waiting += seconds;
    if (state_ == State::kMeeting) total_.meeting += seconds;
    since_ = now;
  }

  std::mutex mutex_;
  State state_ = State::kResting;
  Clock::time_point since_ = Clock::now();
  WorkTime total_;
  WorkTime taken_;  // what `take` gave so far
};

}  // namespace draftsmith::pipeline
