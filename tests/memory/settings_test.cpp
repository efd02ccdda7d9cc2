// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/memory/settings.h"

#include <gtest/gtest.h>

#include "draftsmith/base/error.h"

#include "tests/support/reference.h"

namespace draftsmith::memory {
namespace {

TEST(Bytes, AreReadWithTheirUnits) {
  EXPECT_EQ(parse_bytes("20GiB", "memory.budget"), int64_t{20} << 30);
  EXPECT_EQ(parse_bytes("512 MiB", "memory.budget"), int64_t{512} << 20);
  EXPECT_EQ(parse_bytes("1.5GB", "memory.budget"), 1500000000);
  EXPECT_EQ(parse_bytes("0", "memory.budget"), 0);
  EXPECT_EQ(parse_bytes("4096", "memory.budget"), 4096);
}

TEST(Bytes, RefuseWhatIsNone) {
  for (const char* text : {"", "GiB", "-1GiB", "20 giga", "nan", "inf"})
    testing::expect_error<ConfigError>(
        [&] { parse_bytes(text, "memory.budget"); }, {"memory.budget", "20GiB", text});
}

TEST(Bytes, AreShownWithThreeDigits) {
  EXPECT_EQ(print_bytes(17), "17 B");
  EXPECT_EQ(print_bytes(int64_t{1536} << 20), "1.50 GiB");
  EXPECT_EQ(print_bytes(int64_t{300} << 20), "300 MiB");
  EXPECT_EQ(print_bytes(int64_t{95} << 30), "95.0 GiB");
}

}  // namespace
}  // namespace draftsmith::memory
