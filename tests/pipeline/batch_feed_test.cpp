// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/batch_feed.h"

#include <gtest/gtest.h>

#include "tests/pipeline/tiny_data.h"

namespace draftsmith::pipeline {
namespace {

const model::Target& tiny_target() {
  static const auto target = testing::load_target("targets/qwen3-tiny");
  return target;
}

std::vector<TrainBatch> take(BatchFeed& feed, int64_t count) {
  std::vector<TrainBatch> batches;
  for (int64_t i = 0; i < count; ++i)
    batches.push_back(feed.next().value());
  return batches;
}

TEST(InlineFeed, GivesRanksEveryBatchOfTheEpochsOnceAndInOrder) {
  const auto source = testing::make_ten_sequence_source();
  InlineFeed whole(tiny_target(), source.share(), testing::tiny_recipe(), {});
  const auto all = take(whole, 12);
  EXPECT_EQ(all[5].at, (data::DataCursor{1, 0}));
  for (int64_t rank = 0; rank < 3; ++rank) {
    InlineFeed feed(
        tiny_target(), source.share(), testing::tiny_recipe(), {.rank = rank, .ranks = 3});
    for (const auto& batch : take(feed, 4)) {
      const auto& same = all[static_cast<size_t>(batch.number)];
      EXPECT_EQ(batch.number % 3, rank);
      EXPECT_EQ(batch.at, same.at);
      EXPECT_EQ(batch.next, same.next);
      EXPECT_EQ(batch.tokens.sequences, same.tokens.sequences);
      EXPECT_TRUE(batch.features.equal(same.features));
    }
  }
}

TEST(InlineFeed, GoesOnFromAnyNumber) {
  const auto source = testing::make_ten_sequence_source();
  InlineFeed whole(tiny_target(), source.share(), testing::tiny_recipe(), {});
  const auto all = take(whole, 9);
  // Batch 4 is the last one of its epoch: its `next` stands at the end of the epoch.
  for (const int64_t number : {3, 5, 6}) {
    FeedStart start{
        .cursor = all[static_cast<size_t>(number) - 1].next,
        .number = number,
        .rank = 0,
        .ranks = 2};
    InlineFeed feed(tiny_target(), source.share(), testing::tiny_recipe(), start);
    const auto batch = feed.next().value();
    EXPECT_EQ(batch.number, number + number % 2);
    EXPECT_EQ(batch.at, all[static_cast<size_t>(batch.number)].at) << number;
  }
}

TEST(BatchSource, AdvancesAsReadingDoes) {
  auto source = testing::make_ten_sequence_source();
  const auto rule = testing::tiny_recipe().rule;
  data::DataCursor cursor;
  for (int64_t count = 1; count < 13; ++count) {
    cursor = source.read(cursor, rule).next;
    EXPECT_EQ(source.advance({}, count), cursor) << count;
  }
}

}  // namespace
}  // namespace draftsmith::pipeline
