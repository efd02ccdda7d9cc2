// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/formats/event_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "draftsmith/base/atomic_file.h"

#include "tests/support/temp_folder.h"

namespace draftsmith::formats {
namespace {

namespace fs = std::filesystem;
using testing::TempFolder;

size_t end_of(const fs::path& file, int64_t step) { return find_event_end(read_file(file), step); }

TEST(EventFile, HoldsTheBytesThatTensorBoardReads) {
  const TempFolder folder;
  EventFile events(folder.path(), 0);
  const size_t header = fs::file_size(events.path());
  events.write(300, {{"a/b", 1.5F}});
  std::string bytes = read_file(events.path());
  // Record: length 8, its checksum 4, message, its checksum 4.
  EXPECT_EQ(header, 8U + 4 + 9 + 2 + 13 + 4);
  EXPECT_EQ(
      bytes.substr(8 + 4 + 9, 15),
      "\x1a\x0d"
      "brain.Event:2");
  const std::string message = bytes.substr(header + 12 + 9);
  // Step 300 as a varint; summary {value {tag "a/b", simple_value 1.5}}.
  EXPECT_EQ(
      message.substr(0, message.size() - 4), std::string(
                                                 "\x10\xac\x02\x2a\x0c\x0a\x0a\x0a\x03"
                                                 "a/b"
                                                 "\x15\x00\x00\xc0\x3f",
                                                 17));
}

TEST(EventFile, EndsBeforeTheFirstLaterStep) {
  const TempFolder folder;
  EventFile events(folder.path(), 0);
  std::vector<size_t> ends = {fs::file_size(events.path())};
  for (const int64_t step : {10, 200, 70000}) {
    events.write(step, {{"loss", 1}});
    ends.push_back(fs::file_size(events.path()));
  }
  EXPECT_EQ(end_of(events.path(), 0), ends[0]);
  EXPECT_EQ(end_of(events.path(), 9), ends[0]);
  EXPECT_EQ(end_of(events.path(), 10), ends[1]);
  EXPECT_EQ(end_of(events.path(), 69999), ends[2]);
  EXPECT_EQ(end_of(events.path(), 70000), ends[3]);
}

TEST(EventFile, EndsBeforeARecordThatIsCutOrDamaged) {
  const TempFolder folder;
  EventFile events(folder.path(), 0);
  events.write(1, {{"loss", 1}});
  const size_t whole = fs::file_size(events.path());
  events.write(2, {{"loss", 2}});
  const std::string bytes = read_file(events.path());
  for (size_t size = whole; size < bytes.size(); ++size)
    EXPECT_EQ(find_event_end(std::string_view(bytes).substr(0, size), 9), whole) << size;
  for (size_t i = whole; i < bytes.size(); ++i) {
    std::string changed = bytes;
    changed[i] = static_cast<char>(changed[i] ^ 4);
    EXPECT_EQ(find_event_end(changed, 9), whole) << i;
  }
  EXPECT_EQ(find_event_end("", 9), 0U);
  EXPECT_EQ(find_event_end("this was never an event file at all", 9), 0U);
}

TEST(EventFile, TellsEveryStepOnceAcrossProcesses) {
  const TempFolder folder;
  EventFile first(folder.path(), 0);
  for (const int64_t step : {1, 2, 3, 4})
    first.write(step, {{"loss", 1}});
  EventFile second(folder.path(), 2);
  EXPECT_GT(second.path().filename(), first.path().filename());
  second.write(3, {{"loss", 1}});
  EXPECT_EQ(end_of(first.path(), 9), fs::file_size(first.path()));
  EXPECT_EQ(end_of(first.path(), 2), fs::file_size(first.path()));
  EXPECT_LT(end_of(first.path(), 1), fs::file_size(first.path()));
  EXPECT_LT(end_of(second.path(), 2), fs::file_size(second.path()));
}

}  // namespace
}  // namespace draftsmith::formats
