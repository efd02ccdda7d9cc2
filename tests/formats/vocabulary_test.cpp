// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/formats/vocabulary.h"

#include <gtest/gtest.h>

#include <string>

#include "draftsmith/base/error.h"
#include "draftsmith/formats/json.h"

#include "tests/base/expect_error.h"
#include "tests/support/temp_folder.h"

namespace draftsmith::formats {
namespace {

using testing::TempFolder;

TEST(Vocabulary, TurnsByteLevelTokensIntoBytes) {
  const TempFolder folder;
  // "\u0120a" is " a", "\u010a" a line feed, "\u00c3" and "\u00a9" the two bytes of e acute;
  // U+0101 stands for byte 1 + 0 = the first of the others after 0.
  folder.write("tokenizer.json", R"({"decoder": {"type": "ByteLevel"}, "model": {"vocab":
      {"\u0120a": 0, "\u010a": 1, "\u00c3": 2, "\u00a9": 3, "\u0100": 4}},
      "added_tokens": [{"id": 9, "content": "<|im_end|>"}]})");
  const auto vocabulary = Vocabulary::from_folder(folder.path());
  EXPECT_EQ(vocabulary.text(0), " a");
  EXPECT_EQ(vocabulary.text(1), "\n");
  EXPECT_EQ(vocabulary.text(2) + vocabulary.text(3), "\xc3\xa9");
  EXPECT_EQ(vocabulary.text(4), std::string(1, '\0'));
  EXPECT_EQ(vocabulary.text(9), "<|im_end|>");
  EXPECT_EQ(vocabulary.text(5), "<5>");
}

TEST(Vocabulary, TurnsSentencePieceTokensIntoText) {
  const TempFolder folder;
  folder.write("tokenizer.json", R"({"decoder": {"type": "Sequence"}, "model": {"vocab":
      [["<unk>", 0], ["\u2581a\u2581b", -1], ["<0x0A>", -2], ["<0xZZ>", -3]]}})");
  const auto vocabulary = Vocabulary::from_folder(folder.path());
  EXPECT_EQ(vocabulary.text(0), "<unk>");
  EXPECT_EQ(vocabulary.text(1), " a b");
  EXPECT_EQ(vocabulary.text(2), "\n");
  EXPECT_EQ(vocabulary.text(3), "<0xZZ>");
}

TEST(Vocabulary, IsEmptyWithoutATokenizer) {
  const TempFolder folder;
  EXPECT_TRUE(Vocabulary::from_folder(folder.path()).empty());
  EXPECT_EQ(Vocabulary::from_folder(folder.path()).text(3), "<3>");
}

TEST(Vocabulary, DecodesATokenOfAMillionSpacesInOnePass) {
  const TempFolder folder;
  std::string spaces;
  for (int i = 0; i < 1'000'000; ++i)
    spaces += "\xe2\x96\x81";
  folder.write("tokenizer.json", R"({"model": {"vocab": {")" + spaces + R"(": 0}}})");
  EXPECT_EQ(Vocabulary::from_folder(folder.path()).text(0), std::string(1'000'000, ' '));
}

TEST(Vocabulary, RefusesADamagedTokenizer) {
  const TempFolder folder;
  for (const std::string& text : std::vector<std::string>{
           "", "[]", R"({"model": {"vocab": {"a": 0, "a": 1}}})",
           R"({"model": {"vocab": {"a": -1}}})", R"({"model": {"vocab": {"a": "x"}}})",
           R"({"added_tokens": {}})", R"({"added_tokens": [{"id": 1}]})", std::string(100, '[')}) {
    SCOPED_TRACE(text);
    folder.write("tokenizer.json", text);
    testing::expect_error<DataError>(
        [&] { Vocabulary::from_folder(folder.path()); }, {"tokenizer.json"});
  }
}

void write_shown_tokenizer(const testing::TempFolder& folder, const Json& vocab, const Json& decoder) {
  const Json tokenizer = {
      {"model", {{"vocab", vocab}}},
      {"decoder", decoder},
      {"added_tokens", {{{"id", 9}, {"content", "<|end|>"}}}}};
  folder.write("tokenizer.json", tokenizer.dump());
}

TEST(VocabularyShow, ShowsBytesOfByteLevelTokens) {
  const testing::TempFolder folder;
  write_shown_tokenizer(
      folder,
      {{"\u0120cat", 0}, {"\u010a", 1}, {"\u00c3\u00a9", 2}, {"\u00c3", 3}, {"a\u0120b", 4}},
      {{"type", "ByteLevel"}});
  const auto text = Vocabulary::from_folder(folder.path());
  EXPECT_EQ(text.show(0), "\" cat\"");
  EXPECT_EQ(text.show(1), "\"\\n\"");
  EXPECT_EQ(text.show(2), "\"\u00e9\"");
  EXPECT_EQ(text.show(3), "<C3>");  // half a character
  EXPECT_EQ(text.show(4), "\"a b\"");
  EXPECT_EQ(text.show(9), "\"<|end|>\"");
  EXPECT_EQ(text.show(5), "5");
}

TEST(VocabularyShow, ShowsSpacesOfSentencePieceTokens) {
  const testing::TempFolder folder;
  write_shown_tokenizer(folder, {{"\u2581cat", 0}, {"\u2581\u2581", 1}}, nullptr);
  const auto text = Vocabulary::from_folder(folder.path());
  EXPECT_EQ(text.show(0), "\" cat\"");
  EXPECT_EQ(text.show(1), "\"  \"");
}

TEST(VocabularyShow, ShowsNumbersWithoutATokenizer) {
  const testing::TempFolder folder;
  EXPECT_EQ(Vocabulary::from_folder(folder.path()).show(17), "17");
}

}  // namespace
}  // namespace draftsmith::formats
