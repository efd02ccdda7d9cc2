// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/base/stop_signal.h"

#include <unistd.h>

#include <atomic>
#include <csignal>

namespace draftsmith {
namespace {

constexpr int kExitInterruptedTwice = 130;
constexpr char kNotice[] = "\nstopping after this step; once more stops at once\n";

/// Signals belong to the process, and so does this count.
std::atomic<int> arrived{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler must not lock");

void on_signal(int /*number*/) {
  if (arrived.fetch_add(1) > 0) ::_exit(kExitInterruptedTwice);
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kNotice, sizeof(kNotice) - 1);
}

void set_handler(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGINT, SIGTERM})
    ::sigaction(number, &action, nullptr);
}

}  // namespace

StopSignals::StopSignals() {
  arrived = 0;
  set_handler(&on_signal);
}

StopSignals::~StopSignals() { set_handler(SIG_DFL); }

bool StopSignals::is_requested() const { return arrived > 0; }

}  // namespace draftsmith
