// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/formats/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string_view>

#include "draftsmith/base/error.h"

#include "tests/base/expect_error.h"
#include "tests/support/temp_folder.h"

namespace draftsmith::formats {
namespace {

using testing::expect_error;
using testing::TempFolder;

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.data()), file.size_bytes()};
}

TEST(MappedFile, ShowsTheBytesOfTheFile) {
  const TempFolder folder;
  const std::string bytes("a\0b\n", 4);
  EXPECT_EQ(text_of(*MappedFile::open(folder.write("file", bytes))), bytes);
}

TEST(MappedFile, StaysReadableAfterTheFileIsReplaced) {
  const TempFolder folder;
  const auto file = MappedFile::open(folder.write("file", "old"));
  std::filesystem::remove(folder / "file");
  folder.write("file", "new");
  EXPECT_EQ(text_of(*file), "old");
}

TEST(MappedFile, NamesAFileThatIsMissingEmptyOrNone) {
  const TempFolder folder;
  folder.write("empty", "");
  folder.write("folder/file", "x");
  expect_error<DataError>(
      [&] { MappedFile::open(folder / "missing"); }, {"missing", "No such file"});
  expect_error<DataError>([&] { MappedFile::open(folder / "empty"); }, {"empty"});
  expect_error<DataError>([&] { MappedFile::open(folder / "folder"); }, {"folder", "regular file"});
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_error<DataError>([&] { MappedFile::open(folder / "pipe"); }, {"pipe", "regular file"});
}

}  // namespace
}  // namespace draftsmith::formats
