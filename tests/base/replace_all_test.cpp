// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/base/replace_all.h"

#include <gtest/gtest.h>

namespace draftsmith {
namespace {

TEST(ReplaceAll, ReplacesEveryPlaceAndNothingElse) {
  EXPECT_EQ(replace_all("", "a", "b"), "");
  EXPECT_EQ(replace_all("xyz", "a", "b"), "xyz");
  EXPECT_EQ(replace_all("a-a-a", "a", "bb"), "bb-bb-bb");
  EXPECT_EQ(replace_all("--a--", "--", ""), "a");
  EXPECT_EQ(replace_all(std::string_view("\0\0", 2), std::string_view("\0", 1), "0"), "00");
}

TEST(ReplaceAll, DoesNotLookAtWhatItHasPutIn) {
  EXPECT_EQ(replace_all("aaa", "a", "aa"), "aaaaaa");
  EXPECT_EQ(replace_all("aaa", "aa", "a"), "aa");
}

}  // namespace
}  // namespace draftsmith
