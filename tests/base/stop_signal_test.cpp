// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/base/stop_signal.h"

#include <gtest/gtest.h>

#include <csignal>

namespace draftsmith {
namespace {

TEST(StopSignals, AskOnceWhateverTheSignal) {
  for (const int number : {SIGINT, SIGTERM}) {
    const StopSignals signals;
    EXPECT_FALSE(signals.is_requested());
    ::testing::internal::CaptureStderr();
    std::raise(number);
    EXPECT_NE(::testing::internal::GetCapturedStderr().find("stopping after"), std::string::npos);
    EXPECT_TRUE(signals.is_requested());
  }
}

TEST(StopSignalsDeathTest, EndTheProcessWhenTheyComeTwice) {
  const auto interrupt_twice = [] {
    const StopSignals signals;
    std::raise(SIGINT);
    std::raise(SIGTERM);
  };
  EXPECT_EXIT(interrupt_twice(), ::testing::ExitedWithCode(130), "");
}

TEST(StopSignalsDeathTest, HaveTheirUsualEffectAfterwards) {
  const auto interrupt = [] {
    { const StopSignals signals; }
    std::raise(SIGTERM);
  };
  EXPECT_EXIT(interrupt(), ::testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace draftsmith
