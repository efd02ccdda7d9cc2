// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/base/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "draftsmith/base/error.h"

#include "tests/base/expect_error.h"
#include "tests/support/temp_folder.h"

namespace draftsmith {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::snapshot;
using testing::TempFolder;
using Files = std::vector<std::pair<std::string, std::string>>;

TEST(AtomicFile, WritesBytesThatAreReadBackUnchanged) {
  const TempFolder folder;
  const std::string bytes("a\0b\r\n\xff", 6);
  write_file_atomically(folder / "file", bytes);
  EXPECT_EQ(read_file(folder / "file"), bytes);
}

TEST(AtomicFile, ReplacesAnOldFileAndLeavesNothingElse) {
  const TempFolder folder;
  folder.write("file", "a long old content");
  write_file_atomically(folder / "file", "new");
  EXPECT_EQ(snapshot(folder.path()), (Files{{"file", "new"}}));
}

TEST(AtomicFile, LeavesTheOldFileAloneWhenTheWriteIsRefused) {
  const TempFolder folder;
  fs::create_directories(folder / "taken");
  folder.write("taken/inside", "old");
  expect_error<DeviceError>([&] { write_file_atomically(folder / "taken", "new"); }, {"taken"});
  EXPECT_EQ(read_file(folder / "taken/inside"), "old");
}

TEST(AtomicFile, NamesTheFileWhenItsFolderIsMissing) {
  const TempFolder folder;
  expect_error<DeviceError>(
      [&] { write_file_atomically(folder / "missing/file", "x"); }, {"missing/file"});
}

TEST(ReadFile, NamesAMissingFileAndAFolder) {
  const TempFolder folder;
  expect_error<DataError>(
      [&] { read_file(folder / "missing"); }, {"missing", "No such file or directory"});
  expect_error<DataError>(
      [&] { read_file(folder.path()); }, {folder.path().string(), "Is a directory"});
}

TEST(ReadFile, DoesNotWaitForAPipe) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_error<DataError>([&] { read_file(folder / "pipe"); }, {"pipe", "no regular file"});
}

TEST(ReadFile, TakesNoMoreMemoryThanTheFile) {
  const TempFolder folder;
  const std::string bytes((1 << 20) + 1, 'x');
  EXPECT_LE(read_file(folder.write("file", bytes)).capacity(), bytes.size() + 16);
}

TEST(ReadFile, ReadsAnEmptyFileAsNoBytes) {
  const TempFolder folder;
  EXPECT_EQ(read_file(folder.write("empty", "")), "");
}

TEST(MakeWritableFolder, MakesParentsAndLeavesTheFolderEmpty) {
  const TempFolder folder;
  make_writable_folder(folder / "a/b/c", "train.out");
  EXPECT_TRUE(fs::is_directory(folder / "a/b/c"));
  EXPECT_TRUE(fs::is_empty(folder / "a/b/c"));
}

TEST(MakeWritableFolder, NamesTheSettingWhenAFileIsInTheWay) {
  const TempFolder folder;
  folder.write("file", "old");
  for (const char* path : {"file", "file/below"}) {
    expect_error<ConfigError>(
        [&] { make_writable_folder(folder / path, "train.out"); }, {"train.out", "file"});
  }
  EXPECT_EQ(read_file(folder / "file"), "old");
}

TEST(StagedFolder, LeavesNothingWhenItIsNotPublished) {
  const TempFolder folder;
  {
    const StagedFolder staged(folder / "step-1");
    write_file_atomically(staged.path() / "weights", "half");
    EXPECT_FALSE(fs::exists(folder / "step-1"));
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(StagedFolder, KeepsTheOldFolderWhenItIsNotPublished) {
  const TempFolder folder;
  folder.write("step-1/weights", "old");
  {
    const StagedFolder staged(folder / "step-1");
    write_file_atomically(staged.path() / "weights", "new");
  }
  EXPECT_EQ(snapshot(folder.path()), (Files{{"step-1/weights", "old"}}));
}

TEST(StagedFolder, AppearsWithAllItsFilesWhenPublished) {
  const TempFolder folder;
  StagedFolder staged(folder / "runs/step-1");
  fs::create_directories(staged.path() / "deep");
  write_file_atomically(staged.path() / "weights", "a");
  write_file_atomically(staged.path() / "deep/state", "b");
  staged.publish();
  EXPECT_EQ(
      snapshot(folder.path()),
      (Files{{"runs/step-1/deep/state", "b"}, {"runs/step-1/weights", "a"}}));
}

TEST(StagedFolder, ReplacesAnOldFolderAsAWhole) {
  const TempFolder folder;
  folder.write("step-1/old-file", "old");
  StagedFolder staged(folder / "step-1/");
  write_file_atomically(staged.path() / "weights", "new");
  staged.publish();
  EXPECT_EQ(snapshot(folder.path()), (Files{{"step-1/weights", "new"}}));
}

TEST(StagedFolder, ThrowsAwayWhatAKilledProcessLeft) {
  const TempFolder folder;
  {
    const StagedFolder first(folder / "step-1");
    write_file_atomically(first.path() / "leftover", "half");
    // A second object on the same folder stands for the next process.
    StagedFolder second(folder / "step-1");
    write_file_atomically(second.path() / "weights", "new");
    second.publish();
  }
  EXPECT_EQ(snapshot(folder.path()), (Files{{"step-1/weights", "new"}}));
}

TEST(StagedFolder, SaysWhereItCannotBeMade) {
  const TempFolder folder;
  folder.write("file", "old");
  expect_error<DeviceError>([&] { StagedFolder staged(folder / "file/step-1"); }, {"file"});
}

}  // namespace
}  // namespace draftsmith
