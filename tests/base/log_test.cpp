// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/base/log.h"

#include <gtest/gtest.h>

#include <regex>
#include <sstream>
#include <thread>
#include <vector>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"

#include "tests/base/expect_error.h"
#include "tests/support/temp_folder.h"

namespace draftsmith {
namespace {

using testing::TempFolder;

/// Lines of a file without the date and time in front of each.
std::vector<std::string> read_lines(const std::filesystem::path& path) {
  static const std::regex stamp(R"(^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d )");
  std::vector<std::string> lines;
  std::istringstream stream(read_file(path));
  for (std::string line; std::getline(stream, line);) {
    EXPECT_TRUE(std::regex_search(line, stamp)) << line;
    lines.push_back(std::regex_replace(line, stamp, ""));
  }
  return lines;
}

TEST(Log, SendsResultsToStdoutAndTheRestToStderr) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  print_result("loss {:.2f}", 1.5);
  log_info("step {}", 3);
  log_warning("slow disk");
  log_to_copy_only("not shown");
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "loss 1.50\n");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "step 3\nwarning: slow disk\n");
}

TEST(Log, CopiesAllLinesUntilItIsStopped) {
  const TempFolder folder;
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  log_line("before");
  copy_log_to(folder / "log.txt");
  print_line("a result {}");
  log_line("a line");
  log_warning("a warning");
  log_to_copy_only("a bar");
  stop_log_copy();
  log_line("after");
  log_to_copy_only("after");
  ::testing::internal::GetCapturedStdout();
  ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(
      read_lines(folder / "log.txt"),
      (std::vector<std::string>{"a result {}", "a line", "warning: a warning", "a bar"}));
}

TEST(Log, AppendsToTheCopyOfAnEarlierRun) {
  const TempFolder folder;
  ::testing::internal::CaptureStderr();
  for (const char* line : {"first run", "second run"}) {
    copy_log_to(folder / "log.txt");
    log_line(line);
    stop_log_copy();
  }
  ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(read_lines(folder / "log.txt"), (std::vector<std::string>{"first run", "second run"}));
}

TEST(Log, BeginsTheCopyWithTheLinesThatWereKept) {
  const TempFolder folder;
  ::testing::internal::CaptureStderr();
  log_line("too early");
  keep_lines_for_copy();
  log_line("early");
  log_to_copy_only("a bar");
  copy_log_to(folder / "log.txt");
  log_line("late");
  stop_log_copy();
  log_line("after");
  ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(read_lines(folder / "log.txt"), (std::vector<std::string>{"early", "a bar", "late"}));
}

TEST(Log, GoesOnWithoutTheCopyWhereTheDiskIsFull) {
  const TempFolder folder;
  std::filesystem::create_symlink("/dev/full", folder / "log.txt");
  ::testing::internal::CaptureStderr();
  copy_log_to(folder / "log.txt");
  log_line("one");
  log_line("two");
  stop_log_copy();
  std::istringstream said(::testing::internal::GetCapturedStderr());
  std::vector<std::string> lines;
  for (std::string line; std::getline(said, line);)
    lines.push_back(line);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0], "one");
  EXPECT_NE(lines[1].find("warning: the log misses lines"), std::string::npos) << lines[1];
  EXPECT_NE(lines[1].find("log.txt"), std::string::npos) << lines[1];
  EXPECT_EQ(lines[2], "two");
}

TEST(Log, NamesACopyThatCannotBeOpened) {
  const TempFolder folder;
  std::filesystem::create_directories(folder / "log.txt");
  testing::expect_error<DeviceError>(
      [&] { copy_log_to(folder / "log.txt"); }, {"file", (folder / "log.txt").string()});
}

TEST(Log, KeepsLinesOfSeveralThreadsWhole) {
  const TempFolder folder;
  constexpr int kThreads = 4;
  constexpr int kLines = 50;
  ::testing::internal::CaptureStderr();
  copy_log_to(folder / "log.txt");
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([] {
        for (int i = 0; i < kLines; ++i)
          log_line("one whole line");
      });
    }
  }
  stop_log_copy();
  ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(
      read_lines(folder / "log.txt"),
      std::vector<std::string>(kThreads * kLines, "one whole line"));
}

}  // namespace
}  // namespace draftsmith
