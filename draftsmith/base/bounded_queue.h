// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "draftsmith/base/error.h"

namespace draftsmith {

/// A queue between threads that holds at most `capacity` items: who pushes waits for room, who pops
/// waits for the next item. All members may be called from any thread.
///
/// Items have places 0, 1, 2, .. and are popped in this order. `push` takes the next place; several
/// threads that share out a numbered work between them use `push_at`, and the order of what comes
/// out follows from the numbers, whoever is first.
template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(int64_t capacity) : slots_(static_cast<size_t>(capacity)) {
    DS_CHECK(capacity > 0);
  }

  /// Returns false, and drops the item, if the queue was closed or aborted.
  bool push(T item) {
    std::unique_lock lock(mutex_);
    const int64_t place = num_pushed_++;
    return put(lock, place, std::move(item));
  }

  /// As `push`, for the place `place`, which no other call fills. Waits until fewer than `capacity`
  /// items before it are still to be popped.
  bool push_at(int64_t place, T item) {
    std::unique_lock lock(mutex_);
    return put(lock, place, std::move(item));
  }

  /// The next item. Nothing after `close`, once all items before it were popped, or after `abort`
  /// without an error. Errors: that of `abort`.
  std::optional<T> pop() {
    std::unique_lock lock(mutex_);
    has_item_.wait(lock, [&] { return is_aborted_ || slot(num_popped_) || is_closed_; });
    if (error_) std::rethrow_exception(error_);
    if (is_aborted_ || !slot(num_popped_)) return std::nullopt;
    std::optional<T> item = std::exchange(slot(num_popped_), std::nullopt);
    ++num_popped_;
    lock.unlock();
    has_room_.notify_all();
    has_item_.notify_all();  // the next item may have come before this one
    return item;
  }

  /// Refuses further items; those that are there can still be popped.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      is_closed_ = true;
    }
    wake_all();
  }

  /// Drops all items and ends the waiting of both sides; every `pop` from now on throws `error`, if
  /// there is one. Only the first call counts.
  void abort(std::exception_ptr error = nullptr) {
    std::vector<std::optional<T>> dropped;  // destroyed without the lock
    {
      const std::lock_guard lock(mutex_);
      if (is_aborted_) return;
      is_aborted_ = true;
      error_ = std::move(error);
      dropped.resize(slots_.size());
      slots_.swap(dropped);
    }
    wake_all();
  }

 private:
  std::optional<T>& slot(int64_t place) {
    return slots_[static_cast<size_t>(place) % slots_.size()];
  }

  bool put(std::unique_lock<std::mutex>& lock, int64_t place, T item) {
    const auto has_room = [&] { return place < num_popped_ + static_cast<int64_t>(slots_.size()); };
    has_room_.wait(lock, [&] { return has_room() || is_closed_ || is_aborted_; });
    if (is_closed_ || is_aborted_) return false;
    slot(place) = std::move(item);
    lock.unlock();
    has_item_.notify_all();
    return true;
  }

  void wake_all() {
    has_room_.notify_all();
    has_item_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable has_room_;
  std::condition_variable has_item_;
  std::vector<std::optional<T>> slots_;  // place p stands in slot p % capacity
  int64_t num_pushed_ = 0;               // by `push`
  int64_t num_popped_ = 0;
  bool is_closed_ = false;
  bool is_aborted_ = false;
  std::exception_ptr error_;
};

}  // namespace draftsmith
