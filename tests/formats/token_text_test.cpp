// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/formats/token_text.h"

#include <gtest/gtest.h>

#include "draftsmith/formats/json.h"

#include "tests/support/temp_folder.h"

namespace draftsmith::formats {
namespace {

void write_tokenizer(const testing::TempFolder& folder, const Json& vocab, const Json& decoder) {
  const Json tokenizer = {
      {"model", {{"vocab", vocab}}},
      {"decoder", decoder},
      {"added_tokens", {{{"id", 9}, {"content", "<|end|>"}}}}};
  folder.write("tokenizer.json", tokenizer.dump());
}

TEST(TokenText, ShowsBytesOfByteLevelTokens) {
  const testing::TempFolder folder;
  write_tokenizer(
      folder,
      {{"\u0120cat", 0}, {"\u010a", 1}, {"\u00c3\u00a9", 2}, {"\u00c3", 3}, {"a\u0120b", 4}},
      {{"type", "ByteLevel"}});
  const TokenText text(folder.path());
  EXPECT_EQ(text.show(0), "\" cat\"");
  EXPECT_EQ(text.show(1), "\"\\n\"");
  EXPECT_EQ(text.show(2), "\"\u00e9\"");
  EXPECT_EQ(text.show(3), "<C3>");  // half a character
  EXPECT_EQ(text.show(4), "\"a b\"");
  EXPECT_EQ(text.show(9), "\"<|end|>\"");
  EXPECT_EQ(text.show(5), "5");
}

TEST(TokenText, ShowsSpacesOfSentencePieceTokens) {
  const testing::TempFolder folder;
  write_tokenizer(folder, {{"\u2581cat", 0}, {"\u2581\u2581", 1}}, nullptr);
  const TokenText text(folder.path());
  EXPECT_EQ(text.show(0), "\" cat\"");
  EXPECT_EQ(text.show(1), "\"  \"");
}

TEST(TokenText, ShowsNumbersWithoutATokenizer) {
  const testing::TempFolder folder;
  EXPECT_EQ(TokenText(folder.path()).show(17), "17");
  EXPECT_TRUE(read_vocabulary(folder.path()).empty());
}

}  // namespace
}  // namespace draftsmith::formats
