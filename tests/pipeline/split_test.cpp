// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/split.h"

#include <gtest/gtest.h>

namespace draftsmith::pipeline {
namespace {

TEST(Split, LetsThroughWhatTheSlowestSideDoes) {
  const StageSeconds seconds{.loader = 0.01, .target = 0.5, .drafter = 0.3};
  EXPECT_DOUBLE_EQ(batches_per_s(seconds, {5, 3}), 10);
  EXPECT_DOUBLE_EQ(batches_per_s(seconds, {4, 4}), 8);
  EXPECT_DOUBLE_EQ(batches_per_s(seconds, {6, 2}), 2 / 0.3);
  EXPECT_DOUBLE_EQ(batches_per_s({0.2, 0.5, 0.3}, {5, 3}), 5);
}

TEST(Split, FindsTheSplitThatBalancesTheRates) {
  EXPECT_EQ(find_best_split({0, 0.5, 0.3}, 8), (Split{5, 3}));
  EXPECT_EQ(find_best_split({0, 0.3, 0.5}, 8), (Split{3, 5}));
  EXPECT_EQ(find_best_split({0, 1, 1}, 2), (Split{1, 1}));
  EXPECT_EQ(find_best_split({0, 1, 100}, 8), (Split{1, 7}));
  // Behind a slow loader all splits are equal, and then drafters hold their sums of gradients.
  EXPECT_EQ(find_best_split({10, 1, 1}, 4), (Split{1, 3}));
}

TEST(Split, SaysWhichSideWasSlowAndWhatWouldBeBetter) {
  const auto text = describe_bottleneck({0.01, 0.5, 0.3}, {4, 4});
  EXPECT_NE(text.find("the targets of 4 + 4 workers were the bottleneck"), std::string::npos)
      << text;
  EXPECT_NE(text.find("5 + 3 would give 10 batches/s, 25 % more"), std::string::npos) << text;
  const auto other = describe_bottleneck({0.01, 0.5, 0.3}, {6, 2});
  EXPECT_NE(other.find("the drafters of 6 + 2"), std::string::npos) << other;
  EXPECT_NE(other.find("5 + 3 would give"), std::string::npos) << other;
}

TEST(Split, RecommendsNoneForWorkersOnOneDevice) {
  const auto text = describe_bottleneck({0.01, 0.5, 0.3}, {4, 4}, /*shares_device=*/true);
  EXPECT_NE(text.find("the targets of 4 + 4"), std::string::npos) << text;
  EXPECT_NE(text.find("share one device"), std::string::npos) << text;
  EXPECT_EQ(text.find("would give"), std::string::npos) << text;
}

TEST(Split, SaysWhenNoOtherSplitHelps) {
  const auto best = describe_bottleneck({0.01, 0.5, 0.3}, {5, 3});
  EXPECT_NE(best.find("no other split of 8 workers is better"), std::string::npos) << best;
  const auto loader = describe_bottleneck({0.2, 0.5, 0.3}, {5, 3});
  EXPECT_NE(loader.find("the loader of 5 + 3"), std::string::npos) << loader;
}

}  // namespace
}  // namespace draftsmith::pipeline
