// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace draftsmith::train {
namespace {

TEST(Schedule, WarmsUpInEqualStepsToThePeak) {
  for (const char* kind : {"cosine", "constant", "wsd"}) {
    const Schedule schedule{kind, 2.0, 4, 100};
    EXPECT_DOUBLE_EQ(schedule.lr(0), 0.5);
    EXPECT_DOUBLE_EQ(schedule.lr(1), 1.0);
    EXPECT_DOUBLE_EQ(schedule.lr(3), 2.0);
    EXPECT_DOUBLE_EQ(schedule.lr(4), 2.0);
  }
}

TEST(Schedule, FallsAsHalfACosineToZero) {
  const Schedule schedule{"cosine", 3.0, 20, 120};
  EXPECT_DOUBLE_EQ(schedule.lr(20), 3.0);
  EXPECT_NEAR(schedule.lr(45), 1.5 * (1 + std::sqrt(0.5)), 1e-12);
  EXPECT_NEAR(schedule.lr(70), 1.5, 1e-12);
  EXPECT_NEAR(schedule.lr(95), 1.5 * (1 - std::sqrt(0.5)), 1e-12);
  EXPECT_NEAR(schedule.lr(120), 0, 1e-12);
  EXPECT_GT(schedule.lr(119), 0);
}

TEST(Schedule, StaysAtThePeakWhenConstant) {
  const Schedule schedule{"constant", 3.0, 0, 10};
  for (int64_t step = 0; step < 10; ++step)
    EXPECT_DOUBLE_EQ(schedule.lr(step), 3.0);
}

TEST(Schedule, FallsLinearlyOverTheLastFifthInWsd) {
  const Schedule schedule{"wsd", 1.0, 10, 100};
  EXPECT_DOUBLE_EQ(schedule.lr(50), 1.0);
  EXPECT_DOUBLE_EQ(schedule.lr(80), 1.0);
  EXPECT_NEAR(schedule.lr(85), 0.75, 1e-12);
  EXPECT_NEAR(schedule.lr(90), 0.5, 1e-12);
  EXPECT_NEAR(schedule.lr(99), 0.05, 1e-12);
}

TEST(Schedule, NeverLeavesZeroToPeakWhateverTheShape) {
  for (const char* kind : {"cosine", "constant", "wsd"}) {
    for (const int64_t warmup : {0, 1, 5, 10}) {
      const Schedule schedule{kind, 1.0, warmup, 10};
      for (int64_t step = 0; step < 12; ++step) {
        EXPECT_GE(schedule.lr(step), 0) << kind << " " << warmup << " " << step;
        EXPECT_LE(schedule.lr(step), 1) << kind << " " << warmup << " " << step;
      }
    }
  }
}

}  // namespace
}  // namespace draftsmith::train
