// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/base/error.h"

#include <gtest/gtest.h>

namespace draftsmith {
namespace {

TEST(ErrorMessage, HasTheAgreedFormWithAllParts) {
  EXPECT_EQ(
      format_error(
          {.what = "train.lr",
           .expected = "a number",
           .got = "'fast'",
           .where = "run.toml",
           .hint = "--train.lr=6e-4"}),
      "train.lr: expected a number, got 'fast' (run.toml). Try --train.lr=6e-4.");
}

TEST(ErrorMessage, LeavesOutPartsThatAreEmpty) {
  EXPECT_EQ(format_error({.what = "device is lost"}), "device is lost.");
  EXPECT_EQ(format_error({.what = "a", .expected = "b"}), "a: expected b.");
  EXPECT_EQ(format_error({.what = "a", .got = "b"}), "a: got b.");
  EXPECT_EQ(format_error({.what = "a", .where = "f"}), "a (f).");
  EXPECT_EQ(format_error({.what = "a", .hint = "b"}), "a. Try b.");
}

TEST(ErrorMessage, IsWhatTheExceptionSays) {
  const ErrorText text{.what = "a", .expected = "b", .got = "c"};
  EXPECT_STREQ(DataError(text).what(), "a: expected b, got c.");
}

TEST(ExitCodes, AreThoseOfTheInterface) {
  const ErrorText text{.what = "a"};
  EXPECT_EQ(ConfigError(text).exit_code(), 2);
  EXPECT_EQ(DataError(text).exit_code(), 3);
  EXPECT_EQ(ShapeError(text).exit_code(), 4);
  EXPECT_EQ(DeviceError(text).exit_code(), 5);
  EXPECT_EQ(DivergenceError(text).exit_code(), 6);
}

TEST(ExitCodes, AreKeptWhenTheErrorIsCaughtAsItsBase) {
  try {
    throw ShapeError({.what = "a"});
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 4);
    return;
  }
  FAIL() << "not caught";
}

TEST(Check, ThrowsALogicErrorThatNamesConditionAndPlace) {
  const auto fail = [] { DS_CHECK(1 + 1 == 3); };
  try {
    fail();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    FAIL() << "our own bugs are not users' mistakes: " << error.what();
  } catch (const std::logic_error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("1 + 1 == 3"), std::string::npos) << message;
    EXPECT_NE(message.find("error_test.cpp"), std::string::npos) << message;
  }
}

TEST(Check, PassesWhenTheConditionHolds) { EXPECT_NO_THROW(DS_CHECK(1 + 1 == 2)); }

}  // namespace
}  // namespace draftsmith
