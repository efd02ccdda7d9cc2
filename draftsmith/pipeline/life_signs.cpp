// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/life_signs.h"

#include <fmt/format.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace draftsmith::pipeline {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kBeat{500};
constexpr milliseconds kSilence{2500};  // five beats
constexpr milliseconds kLook{50};       // between looks at what was announced
constexpr milliseconds kGoodbye{1000};  // how long an announcement or the thread's end may take
constexpr const char* kReasonKey = "end/reason";

std::string beat_key(int64_t process) { return fmt::format("beat/{}", process); }

void write_reason(c10d::Store& store, const std::string& reason) {
  store.compareSet(kReasonKey, "", reason);  // the first one stays
}

}  // namespace

std::string LifeSigns::read_reason(c10d::Store& store) {
  if (!store.check({kReasonKey})) return "";
  return store.get_to_str(kReasonKey);
}

struct LifeSigns::Shared {
  c10::intrusive_ptr<c10d::Store> store;
  int64_t process;
  int64_t processes;

  std::mutex mutex;
  std::condition_variable changed;
  bool must_end = false;
  bool has_ended = false;
  bool is_store_gone = false;
  bool is_asked = false;
  std::optional<std::string> announcement;  // yet to be written
  std::optional<Cause> cause;
  bool is_counted = false;  // among those who know; used by the thread alone

  /// Whoever keeps the store waits for all to know.
  void count_reader() {
    if (!std::exchange(is_counted, true)) store->add(kReadersKey, 1);
  }

  /// Whether somebody announced an end, or after five beats, whose count stands still.
  Cause look() {
    std::vector<int64_t> before;
    for (int64_t i = 0; i < processes; ++i)
      before.push_back(store->add(beat_key(i), 0));
    const auto deadline = steady_clock::now() + kSilence;
    while (steady_clock::now() < deadline) {
      if (auto reason = read_reason(*store); !reason.empty()) return {reason, -1};
      store->add(beat_key(process), 1);
      std::this_thread::sleep_for(kLook);
    }
    for (int64_t i = 0; i < processes; ++i)
      if (store->add(beat_key(i), 0) == before[static_cast<size_t>(i)]) return {"", i};
    return {};
  }
};

LifeSigns::LifeSigns(
    c10::intrusive_ptr<c10d::Store> store, int64_t process, int64_t processes)
    : shared_(std::make_shared<Shared>()) {
  shared_->store = std::move(store);
  shared_->process = process;
  shared_->processes = processes;
  if (processes > 1) std::thread(&LifeSigns::run, shared_).detach();
}

LifeSigns::~LifeSigns() {
  if (shared_->processes == 1) return;
  std::unique_lock lock(shared_->mutex);
  shared_->must_end = true;
  if (shared_->is_store_gone) return;
  shared_->changed.notify_all();
  // A thread that hangs in the store of a machine that is gone is left behind.
  shared_->changed.wait_for(lock, kGoodbye, [&] { return shared_->has_ended; });
}

void LifeSigns::run(const std::shared_ptr<Shared>& shared) {
  std::unique_lock lock(shared->mutex);
  try {
    while (!shared->must_end) {
      const auto announcement = shared->announcement;
      const bool is_asked = std::exchange(shared->is_asked, false);
      lock.unlock();
      shared->store->add(beat_key(shared->process), 1);
      if (announcement) write_reason(*shared->store, *announcement);
      std::optional<Cause> cause;
      if (is_asked) cause = shared->look();
      if (announcement || cause) shared->count_reader();
      lock.lock();
      if (cause) shared->cause = std::move(cause);
      if (announcement) shared->announcement.reset();
      if (announcement || is_asked) shared->changed.notify_all();
      shared->changed.wait_for(lock, kBeat, [&] {
        return shared->must_end || shared->is_asked || shared->announcement;
      });
    }
  } catch (const std::exception&) {  // the connection to the store is closed
    lock.lock();
    shared->is_store_gone = true;
  }
  shared->has_ended = true;
  shared->changed.notify_all();
}

void LifeSigns::announce(const std::string& reason) {
  if (shared_->processes == 1) {
    write_reason(*shared_->store, reason);
    return;
  }
  std::unique_lock lock(shared_->mutex);
  if (shared_->is_store_gone) return;
  shared_->announcement = reason;
  shared_->changed.notify_all();
  shared_->changed.wait_for(
      lock, kGoodbye, [&] { return !shared_->announcement || shared_->has_ended; });
}

LifeSigns::Cause LifeSigns::find_cause() {
  if (shared_->processes == 1) {
    const auto deadline = steady_clock::now() + kSilence;
    while (steady_clock::now() < deadline) {
      if (auto reason = read_reason(*shared_->store); !reason.empty()) return {reason, -1};
      std::this_thread::sleep_for(kLook);
    }
    return {};
  }
  std::unique_lock lock(shared_->mutex);
  shared_->cause.reset();
  shared_->is_asked = !shared_->is_store_gone;
  shared_->changed.notify_all();
  shared_->changed.wait_for(
      lock, kMostTime, [&] { return shared_->cause.has_value() || shared_->is_store_gone; });
  if (shared_->cause) return *shared_->cause;
  shared_->is_store_gone = true;  // from now on nobody waits for it
  return {"", 0};  // process 0 keeps the store, and the store does not answer
}

}  // namespace draftsmith::pipeline
