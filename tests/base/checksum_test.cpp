// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/base/checksum.h"

#include <gtest/gtest.h>

#include <string>

#include "draftsmith/base/error.h"

#include "tests/base/expect_error.h"
#include "tests/support/temp_folder.h"

namespace draftsmith {
namespace {

TEST(Checksum, EqualsThePublishedValues) {
  // RFC 3720, appendix B.4, and the usual check value.
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  std::string ascending;
  for (char c = 0; c < 32; ++c)
    ascending += c;
  EXPECT_EQ(crc32c(ascending), 0x46dd794eU);
}

TEST(Checksum, IsTheSameInPiecesOfAnySize) {
  const std::string text = "the longest of these pieces is not a multiple of eight";
  for (size_t cut = 0; cut <= text.size(); ++cut)
    EXPECT_EQ(crc32c(text.substr(cut), crc32c(text.substr(0, cut))), crc32c(text)) << cut;
}

TEST(Checksum, OfAFileIsThatOfItsBytes) {
  const testing::TempFolder folder;
  std::string bytes;
  for (int i = 0; i < 5'000'000; ++i)  // more than one piece
    bytes += static_cast<char>(i * 7 + i / 256);
  EXPECT_EQ(crc32c_of_file(folder.write("file", bytes)), crc32c(bytes));
  EXPECT_EQ(crc32c_of_file(folder.write("empty", "")), 0U);
  testing::expect_error<DataError>([&] { crc32c_of_file(folder / "none"); }, {"none"});
  testing::expect_error<DataError>([&] { crc32c_of_file(folder.path()); }, {"directory"});
}

}  // namespace
}  // namespace draftsmith
