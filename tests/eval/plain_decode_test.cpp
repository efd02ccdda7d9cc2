// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/eval/plain_decode.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/eval/decode_cases.h"

namespace draftsmith::eval {
namespace {

using testing::decode_target;
using testing::read_decode_cases;
using Ids = std::vector<int64_t>;

TEST(PlainDecode, EqualsTheReferenceContinuations) {
  for (const std::string name :
       {"targets/llama-tiny", "targets/qwen3-tiny", "targets/qwen3_5-tiny"}) {
    const auto target = testing::load_target(name);
    const auto file = testing::golden(name + "/expected.safetensors");
    const auto as_ids = [&](const char* key) {
      const auto tensor = file.tensor(key).contiguous();
      return Ids(tensor.data_ptr<int64_t>(), tensor.data_ptr<int64_t>() + tensor.numel());
    };
    auto ids = as_ids("greedy.prompt");
    const auto answer = decode_plainly(target, {ids}, {48, {}}).front();
    ids.insert(ids.end(), answer.begin(), answer.end());
    EXPECT_EQ(ids, as_ids("greedy.output")) << name;
  }
}

TEST(PlainDecode, EqualsTheDecodeFixtureAlone) {
  const auto cases = read_decode_cases();
  ASSERT_EQ(cases.size(), 6U);
  for (const auto& item : cases)
    EXPECT_EQ(decode_plainly(decode_target(), {item.prompt}, {40, {}}).front(), item.greedy);
}

TEST(PlainDecode, EqualsTheDecodeFixtureInABatchOfDifferentLengths) {
  std::vector<Ids> prompts;
  std::vector<Ids> expected;
  for (const auto& item : read_decode_cases()) {
    prompts.push_back(item.prompt);
    expected.push_back(item.greedy);
  }
  EXPECT_NE(prompts[0].size(), prompts[1].size());
  EXPECT_EQ(decode_plainly(decode_target(), prompts, {40, {}}), expected);
}

TEST(PlainDecode, LetsRowsLeaveTheBatchAtDifferentSteps) {
  std::vector<Ids> prompts;
  std::vector<Ids> alone;
  const DecodeLimits limits{40, {8, 15}};
  for (const auto& item : read_decode_cases()) {
    prompts.push_back(item.prompt);
    alone.push_back(decode_plainly(decode_target(), {item.prompt}, limits).front());
  }
  const auto together = decode_plainly(decode_target(), prompts, limits);
  EXPECT_EQ(together, alone);
  std::vector<size_t> lengths;
  for (const Ids& answer : together)
    lengths.push_back(answer.size());
  std::sort(lengths.begin(), lengths.end());
  EXPECT_LT(lengths.front(), lengths.back());
}

TEST(PlainDecode, EndsWithTheFirstStopId) {
  const auto item = read_decode_cases().front();
  for (const size_t position : {0U, 5U, 39U}) {
    const int64_t stop = item.greedy[position];
    const auto first = std::find(item.greedy.begin(), item.greedy.end(), stop);
    EXPECT_EQ(
        decode_plainly(decode_target(), {item.prompt}, {40, {stop}}).front(),
        Ids(item.greedy.begin(), first + 1));
  }
}

TEST(PlainDecode, EndsAtTheLimit) {
  const auto item = read_decode_cases().front();
  for (const int64_t limit : {1, 2, 17}) {
    const auto answer = decode_plainly(decode_target(), {item.prompt}, {limit, {}}).front();
    EXPECT_EQ(answer, Ids(item.greedy.begin(), item.greedy.begin() + limit));
  }
}

TEST(PlainDecode, TellsOfEveryNewToken) {
  std::vector<Ids> prompts;
  for (const auto& item : read_decode_cases())
    prompts.push_back(item.prompt);
  int64_t told = 0;
  const auto answers = decode_plainly(
      decode_target(), prompts, {20, {8, 15}}, {}, 0, [&](int64_t added) { told += added; });
  int64_t all = 0;
  for (const Ids& answer : answers)
    all += static_cast<int64_t>(answer.size());
  EXPECT_EQ(told, all);
}

TEST(PlainDecode, MeasuresTheGapOfTheTwoBestLogits) {
  const auto file = testing::golden("targets/qwen3-tiny/expected.safetensors");
  const auto ids = file.tensor("short.input_ids").contiguous();
  const auto best = std::get<0>(file.tensor("short.logits")[0][4].topk(2));
  const double expected = (best[0] - best[1]).item<double>();
  const double gap = top_gap(
      testing::load_target("targets/qwen3-tiny"),
      Ids(ids.data_ptr<int64_t>(), ids.data_ptr<int64_t>() + 5));
  EXPECT_NEAR(gap, expected, 1e-4);
}

}  // namespace
}  // namespace draftsmith::eval
