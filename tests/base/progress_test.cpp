// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/base/progress.h"

#include <gtest/gtest.h>

namespace draftsmith {
namespace {

TEST(FormatDuration, ChoosesUnitsBySize) {
  EXPECT_EQ(format_duration(0), "0 s");
  EXPECT_EQ(format_duration(3.4), "3 s");
  EXPECT_EQ(format_duration(59.4), "59 s");
  EXPECT_EQ(format_duration(59.6), "1 min 00 s");
  EXPECT_EQ(format_duration(245), "4 min 05 s");
  EXPECT_EQ(format_duration(3599), "59 min 59 s");
  EXPECT_EQ(format_duration(2 * 3600 + 7 * 60 + 59), "2 h 07 min");
  EXPECT_EQ(format_duration(100 * 3600), "100 h 00 min");
}

TEST(FormatDuration, ShowsNoNegativeTimes) { EXPECT_EQ(format_duration(-5), "0 s"); }

TEST(FormatCount, ChoosesPrefixesBySize) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(12), "12");
  EXPECT_EQ(format_count(12.34), "12.3");
  EXPECT_EQ(format_count(123.4), "123");
  EXPECT_EQ(format_count(4500), "4.5k");
  EXPECT_EQ(format_count(1.2e6), "1.2M");
  EXPECT_EQ(format_count(3.5e9), "3.5G");
}

TEST(Progress, WritesPlainLinesWhenStderrIsNoTerminal) {
  ::testing::internal::CaptureStderr();
  Progress progress("reading", 10, "rows");
  progress.update(1);  // too soon for a line
  progress.update(4, "loss 2.5", /*force_line=*/true);
  progress.finish("all fine");
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.find("reading 1/10"), std::string::npos) << text;
  EXPECT_NE(text.find("reading 4/10  loss 2.5"), std::string::npos) << text;
  EXPECT_NE(text.find("rows/s  ETA"), std::string::npos) << text;
  EXPECT_NE(text.find("reading 4/10 done in 0 s"), std::string::npos) << text;
  EXPECT_NE(text.find("all fine\n"), std::string::npos) << text;
  EXPECT_EQ(text.find('\r'), std::string::npos) << text;
}

TEST(Progress, CountsItsRateFromWhereAResumedRunBegan) {
  ::testing::internal::CaptureStderr();
  Progress progress("training", 10, "steps", 6);
  progress.update(6, "", /*force_line=*/true);
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("training 6/10  0 steps/s  ETA ?"), std::string::npos) << text;
}

}  // namespace
}  // namespace draftsmith
