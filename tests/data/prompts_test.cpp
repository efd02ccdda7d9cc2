// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/prompts.h"

#include <gtest/gtest.h>

#include "draftsmith/base/error.h"

#include "tests/base/expect_error.h"
#include "tests/support/temp_folder.h"

namespace draftsmith::data {
namespace {

using testing::expect_error;
using testing::TempFolder;
using Ids = std::vector<int64_t>;

TEST(Prompts, AreReadLineByLine) {
  const TempFolder folder;
  folder.write(
      "p.jsonl",
      "{\"input_ids\": [1, 2, 9], \"set\": \"math\"}\r\n\n   \n{\"set\": null, \"input_ids\": "
      "[0]}");
  const auto prompts = read_prompts(folder / "p.jsonl", 10);
  ASSERT_EQ(prompts.size(), 2U);
  EXPECT_EQ(prompts[0].ids, (Ids{1, 2, 9}));
  EXPECT_EQ(prompts[0].set, "math");
  EXPECT_EQ(prompts[1].ids, Ids{0});
  EXPECT_EQ(prompts[1].set, "");
}

TEST(Prompts, NameTheLineOfAMistake) {
  const TempFolder folder;
  for (const char* line :
       {"{", "[]", "7", "{}", R"({"input_ids": []})", R"({"input_ids": [1, 10]})",
        R"({"input_ids": [-1]})", R"({"input_ids": [1.5]})", R"({"input_ids": "1 2"})",
        R"({"input_ids": null})", R"({"input_ids": [18446744073709551615]})",
        R"({"input_ids": [[1]]})", R"({"input_ids": [1], "set": 3})",
        R"({"input_ids": [1]} {"input_ids": [2]})"}) {
    SCOPED_TRACE(line);
    folder.write("p.jsonl", "{\"input_ids\": [1]}\n\n" + std::string(line) + "\n");
    expect_error<DataError>([&] { read_prompts(folder / "p.jsonl", 10); }, {"p.jsonl", "line 3"});
  }
}

TEST(Prompts, AreRefusedWhenThereAreNone) {
  const TempFolder folder;
  for (const char* text : {"", "\n\n  \n"}) {
    folder.write("p.jsonl", text);
    expect_error<DataError>([&] { read_prompts(folder / "p.jsonl", 10); }, {"prompts", "p.jsonl"});
  }
}

TEST(Prompts, NameAFileThatIsMissing) {
  const TempFolder folder;
  expect_error<DataError>([&] { read_prompts(folder / "none.jsonl", 10); }, {"none.jsonl"});
}

}  // namespace
}  // namespace draftsmith::data
