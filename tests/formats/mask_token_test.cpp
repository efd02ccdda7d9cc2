// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/formats/mask_token.h"

#include <gtest/gtest.h>

#include "draftsmith/base/error.h"
#include "draftsmith/formats/json.h"

#include "tests/base/expect_error.h"
#include "tests/support/temp_folder.h"

namespace draftsmith::formats {
namespace {

using testing::TempFolder;

/// Tokens a, b, c with ids 0 to 2 and two added ones with ids 3 and 4.
const char* const kTokenizer = R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2}},
    "added_tokens": [{"id": 3, "content": "<pad>"}, {"id": 4, "content": "<mask>"}]})";

TEST(MaskToken, IsTheTokenizersOwnFirst) {
  const TempFolder folder;
  folder.write("tokenizer.json", kTokenizer);
  for (const char* config :
       {R"({"mask_token": "<mask>"})",
        R"({"mask_token": {"content": "<mask>", "lstrip": false}})"}) {
    folder.write("tokenizer_config.json", config);
    const auto token = choose_mask_token(folder.path(), 100);
    EXPECT_EQ(token.id, 4);
    EXPECT_FALSE(token.is_risky);
    EXPECT_NE(token.source.find("mask token"), std::string::npos) << token.source;
  }
}

TEST(MaskToken, IsTheFirstSpareRowWhenTheTokenizerHasNone) {
  const TempFolder folder;
  folder.write("tokenizer.json", kTokenizer);
  const auto without_config = choose_mask_token(folder.path(), 6);
  EXPECT_EQ(without_config.id, 5);
  EXPECT_FALSE(without_config.is_risky);
  folder.write("tokenizer_config.json", R"({"mask_token": null, "pad_token": "<pad>"})");
  EXPECT_EQ(choose_mask_token(folder.path(), 6).id, 5);
}

TEST(MaskToken, IsThePadTokenAtARiskWhenNoRowIsSpare) {
  const TempFolder folder;
  folder.write("tokenizer.json", kTokenizer);
  folder.write("tokenizer_config.json", R"({"eos_token": "c", "pad_token": "<pad>"})");
  const auto token = choose_mask_token(folder.path(), 5);
  EXPECT_EQ(token.id, 3);
  EXPECT_TRUE(token.is_risky);
  EXPECT_NE(token.source.find("pad_token"), std::string::npos) << token.source;
}

TEST(MaskToken, FallsBackToEosAndThenUnk) {
  const TempFolder folder;
  folder.write("tokenizer.json", kTokenizer);
  folder.write("tokenizer_config.json", R"({"eos_token": "c", "unk_token": "a"})");
  EXPECT_EQ(choose_mask_token(folder.path(), 5).id, 2);
  folder.write("tokenizer_config.json", R"({"unk_token": "a"})");
  EXPECT_EQ(choose_mask_token(folder.path(), 5).id, 0);
  EXPECT_TRUE(choose_mask_token(folder.path(), 5).is_risky);
}

TEST(MaskToken, NeverLiesOutsideTheEmbeddingTable) {
  const TempFolder folder;
  folder.write("tokenizer.json", kTokenizer);
  folder.write("tokenizer_config.json", R"({"mask_token": "<mask>", "unk_token": "a"})");
  EXPECT_EQ(choose_mask_token(folder.path(), 4).id, 0);
}

TEST(MaskToken, IsNoneWithoutATokenizer) {
  const TempFolder folder;
  EXPECT_EQ(choose_mask_token(folder.path(), 100).id, -1);
}

TEST(MaskToken, IsNotTheEmptyTokenOfAVocabulary) {
  const TempFolder folder;
  folder.write("tokenizer.json", R"({"model": {"vocab": {"": 0, "a": 1}}})");
  EXPECT_EQ(choose_mask_token(folder.path(), 3).id, 2);
}

TEST(MaskToken, CountsTheRowsOfAUnigramVocabularyAsUsed) {
  const TempFolder folder;
  folder.write(
      "tokenizer.json", R"({"model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.0],
          ["b", -2.0], ["c", -3.0]]}, "added_tokens": [{"id": 0, "content": "<unk>"}]})");
  EXPECT_EQ(choose_mask_token(folder.path(), 6).id, 4);
}

TEST(MaskToken, IsRefusedWhenTheTokenizerFileIsDamaged) {
  const TempFolder folder;
  for (const char* text :
       {"{", "[]", R"({"added_tokens": [7]})",
        R"({"added_tokens": [{"id": "x", "content": "y"}]})"}) {
    folder.write("tokenizer.json", text);
    testing::expect_error<DataError>(
        [&] { choose_mask_token(folder.path(), 100); }, {"tokenizer.json"});
  }
}

}  // namespace
}  // namespace draftsmith::formats
