// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/work_clock.h"

#include <gtest/gtest.h>

#include <thread>

namespace draftsmith::pipeline {
namespace {

void pass(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

TEST(WorkClock, TellsWorkFromWaitingAndCountsNoRest) {
  WorkClock clock;
  pass(5);  // nothing began yet
  clock.begin_work();
  pass(10);
  clock.finish_batch();
  pass(20);
  clock.rest();
  pass(30);
  const WorkTime time = clock.total();
  EXPECT_GE(time.working, 0.010);
  EXPECT_GE(time.waiting, 0.020);
  EXPECT_EQ(time.batches, 1);
  // Sleeps may last longer, but no rest is in the sums: both are as they were.
  pass(5);
  EXPECT_DOUBLE_EQ(clock.total().working, time.working);
  EXPECT_DOUBLE_EQ(clock.total().waiting, time.waiting);
  EXPECT_DOUBLE_EQ(time.waiting_share(), time.waiting / (time.waiting + time.working));
}

TEST(WorkClock, TellsMeetingsFromWaitingForABatch) {
  WorkClock clock;
  clock.begin_work();
  pass(5);
  clock.begin_meeting();
  pass(20);
  clock.begin_work();
  const WorkTime time = clock.take();
  EXPECT_GE(time.meeting, 0.020);
  EXPECT_EQ(time.waiting, 0);
  EXPECT_DOUBLE_EQ(time.meeting_share() * time.total(), time.meeting);
}

TEST(WorkClock, TurnsWorkIntoWaitingThatWasFoundOutLater) {
  WorkClock clock;
  clock.begin_work();
  pass(20);
  clock.count_as_waiting(0.015);
  clock.rest();
  const WorkTime time = clock.take();
  EXPECT_EQ(time.waiting, 0.015);
  EXPECT_GE(time.working, 0.004);
}

TEST(WorkClock, CountsWhatAnotherHasMeasured) {
  WorkClock clock;
  clock.add({.working = 3, .waiting = 1, .batches = 2});
  EXPECT_EQ(clock.take().waiting_share(), 0.25);
  EXPECT_EQ(clock.take().total(), 0);
  EXPECT_EQ(clock.total().batches, 2);
}

TEST(WorkClock, GivesEveryStretchOnceTheRunningOneIncluded) {
  WorkClock clock;
  clock.begin_wait();
  pass(5);
  const WorkTime first = clock.take();
  EXPECT_GE(first.waiting, 0.005);
  EXPECT_EQ(first.waiting_share(), 1);
  clock.begin_work();
  pass(5);
  const WorkTime second = clock.take();
  const WorkTime total = clock.total();
  EXPECT_GE(second.working, 0.005);
  EXPECT_NEAR(first.waiting + second.waiting, total.waiting, 1e-9);
  EXPECT_GE(total.working, second.working);
  clock.restart();
  EXPECT_EQ(clock.total().batches, 0);
  EXPECT_LT(clock.total().waiting, first.waiting);
}

}  // namespace
}  // namespace draftsmith::pipeline
