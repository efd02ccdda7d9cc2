// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/formats/json.h"

#include <gtest/gtest.h>

#include "draftsmith/base/error.h"

#include "tests/base/expect_error.h"
#include "tests/support/temp_folder.h"

namespace draftsmith::formats {
namespace {

using testing::expect_error;
using testing::TempFolder;

JsonObject object_of(const std::string& text) { return {parse_json(text, "a.json"), "a.json"}; }

TEST(ParseJson, KeepsTheOrderOfKeys) {
  EXPECT_EQ(parse_json(R"({"b": 1, "a": [2, null]})", "x").dump(), R"({"b":1,"a":[2,null]})");
}

TEST(ParseJson, NamesTheByteOfAMistake) {
  expect_error<DataError>([] { parse_json(R"({"a": 1,})", "a.json"); }, {"a.json", "byte 9"});
}

TEST(ParseJson, RefusesEverythingThatIsNotJson) {
  const std::string bad[] = {
      "",        "{",        "{} x",       "nul",       "{\"a\": \"\xff\"}",
      "[1 2]",   "{'a':1}",  "\"open",     "[NaN]",     "// comment\n{}",
      "[1e999]", "[-1e999]", "{\"a\":tru", "{\"a\" 1}", std::string(1, '\0')};
  for (const auto& text : bad) {
    SCOPED_TRACE(text);
    expect_error<DataError>([&] { parse_json(text, "a.json"); }, {"a.json"});
  }
}

TEST(ParseJson, RefusesDeepNestingInsteadOfOverflowingTheStack) {
  for (const size_t depth : {100UL, 1'000'000UL}) {
    const std::string closed = std::string(depth, '[') + std::string(depth, ']');
    expect_error<DataError>([&] { parse_json(closed, "a.json"); }, {"a.json", "nesting"});
    expect_error<DataError>([&] { parse_json(std::string(depth, '['), "a.json"); }, {"a.json"});
  }
  std::string objects;
  for (int i = 0; i < 1000; ++i)
    objects += R"({"a":)";
  expect_error<DataError>([&] { parse_json(objects, "a.json"); }, {"a.json"});
}

TEST(ParseJson, GivesNullForALineThatIsNone) {
  EXPECT_EQ(parse_json_or_null(R"({"a": [1]})"), Json({{"a", {1}}}));
  for (const std::string& text :
       {std::string(), std::string("{\"a\": 1"), std::string(1'000'000, '['),
        std::string("[1e999]")})
    EXPECT_TRUE(parse_json_or_null(text).is_null());
}

TEST(ParseJson, AcceptsTheNestingOfRealFiles) {
  const std::string text = std::string(20, '[') + std::string(20, ']');
  EXPECT_EQ(parse_json(text, "x").dump(), text);
}

TEST(ParseJson, RefusesAKeyThatStandsTwiceInOneObject) {
  for (const char* text : {R"({"a": 1, "b": 2, "a": 3})", R"([{"c": {"a": 1, "a": 1}}])"})
    expect_error<DataError>([&] { parse_json(text, "a.json"); }, {"'a' twice", "a.json"});
  EXPECT_NO_THROW(parse_json(R"({"a": {"a": 1}, "b": [{"a": 1}, {"a": 1}]})", "x"));
}

TEST(ParseJson, FindsALateKeyTwiceAmongManyWithoutComparingEachWithAll) {
  std::string text = "{";
  for (int i = 0; i < 300'000; ++i)
    text += "\"key-" + std::to_string(i) + "\":0,";
  EXPECT_EQ(parse_json(text + "\"last\":0}", "x").size(), 300'001U);
  expect_error<DataError>(
      [&] { parse_json(text + "\"key-7\":0}", "a.json"); }, {"'key-7' twice", "a.json"});
}

TEST(ParseJson, RefusesListsThatTakeManyTimesTheBytesOfTheirText) {
  std::string list = "[0";
  for (int i = 0; i < 3'000'000; ++i)
    list += ",0";
  expect_error<DataError>([&] { parse_json(list + "]", "a.json"); }, {"entries", "a.json"});
}

TEST(ReadJsonFile, NamesAMissingFile) {
  const TempFolder folder;
  expect_error<DataError>([&] { read_json_file(folder / "config.json"); }, {"config.json"});
}

TEST(JsonObject, RefusesAnythingButAnObject) {
  const TempFolder folder;
  for (const char* text : {"[]", "1", "null", "\"text\""}) {
    folder.write("config.json", text);
    expect_error<DataError>(
        [&] { JsonObject::from_file(folder / "config.json"); }, {"config.json", "an object", text});
  }
}

TEST(JsonObject, CountsNullAsAbsent) {
  const auto json = object_of(R"({"a": null, "b": 0})");
  EXPECT_FALSE(json.has("a"));
  EXPECT_FALSE(json.has("c"));
  EXPECT_TRUE(json.has("b"));
  EXPECT_EQ(json.integer_or("a", 7, 0, 9), 7);
  EXPECT_EQ(json.number_or("a", 0.5), 0.5);
  EXPECT_EQ(json.boolean_or("a", true), true);
  EXPECT_EQ(json.text_or("a", "none"), "none");
  expect_error<DataError>([&] { json.integer("a", 0, 9); }, {"a:", "none", "a.json"});
}

TEST(JsonObject, ReadsEachType) {
  const auto json = object_of(
      R"({"i": -3, "f": 2.5, "b": true, "t": "x", "l": [1, -2], "s": ["p", "q"], "o": {"k": 1}})");
  EXPECT_EQ(json.integer("i", -3, -3), -3);
  EXPECT_EQ(json.number("f"), 2.5);
  EXPECT_EQ(json.number("i"), -3);
  EXPECT_TRUE(json.boolean_or("b", false));
  EXPECT_EQ(json.text("t"), "x");
  EXPECT_EQ(json.integers("l"), (std::vector<int64_t>{1, -2}));
  EXPECT_EQ(json.integers("i"), (std::vector<int64_t>{-3}));
  EXPECT_EQ(json.texts("s"), (std::vector<std::string>{"p", "q"}));
  EXPECT_EQ(json.object("o").integer("k", 0, 9), 1);
}

TEST(JsonObject, NamesTheKeyOfAWrongType) {
  const auto json = object_of(R"({"v": {"x": 1}, "l": [1, "a"], "f": 1.5, "t": "1", "n": 1})");
  expect_error<DataError>([&] { json.integer("v", 0, 9); }, {"v:", "whole number", "a.json"});
  expect_error<DataError>([&] { json.integer("f", 0, 9); }, {"f:", "1.5"});
  expect_error<DataError>([&] { json.integer("t", 0, 9); }, {"t:", "\"1\""});
  expect_error<DataError>([&] { json.number("t"); }, {"t:", "a number"});
  expect_error<DataError>([&] { json.boolean_or("n", true); }, {"n:", "true or false"});
  expect_error<DataError>([&] { json.text("n"); }, {"n:", "a text"});
  expect_error<DataError>([&] { json.integers("l"); }, {"l:", "whole numbers"});
  expect_error<DataError>([&] { json.integers("t"); }, {"t:", "whole numbers"});
  expect_error<DataError>([&] { json.texts("l"); }, {"l:", "texts"});
  expect_error<DataError>([&] { json.texts("t"); }, {"t:", "texts"});
  expect_error<DataError>([&] { json.object("n"); }, {"n", "an object", "a.json"});
  expect_error<DataError>([&] { json.object("absent"); }, {"absent", "a.json"});
}

TEST(JsonObject, ChecksTheRangeOfAnInteger) {
  const auto json = object_of(R"({"a": 10, "big": 18446744073709551615, "huge": 1e30})");
  EXPECT_EQ(json.integer("a", 10, 10), 10);
  expect_error<DataError>([&] { json.integer("a", 11, 20); }, {"a:", "11", "20", "10"});
  expect_error<DataError>([&] { json.integer("a", 0, 9); }, {"a:"});
  expect_error<DataError>([&] { json.integer("big", INT64_MIN, INT64_MAX); }, {"big:"});
  expect_error<DataError>([&] { json.integers("big"); }, {"big:"});
  expect_error<DataError>([&] { json.integer("huge", INT64_MIN, INT64_MAX); }, {"huge:"});
}

TEST(JsonObject, ShortensALongValueInItsMessage) {
  std::string text = R"({"a": ")";
  text.append(10000, 'x').append(R"("})");
  const auto json = object_of(text);
  EXPECT_LT(expect_error<DataError>([&] { json.number("a"); }, {"a:", "..."}).size(), 200U);
}

}  // namespace
}  // namespace draftsmith::formats
