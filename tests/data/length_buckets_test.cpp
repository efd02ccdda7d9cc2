// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/length_buckets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

namespace draftsmith::data {
namespace {

using Lengths = std::vector<int64_t>;
using Batches = std::vector<std::vector<int64_t>>;

/// Each index once, no batch empty, rows x longest within the budget, not too many rows.
void expect_valid(const Batches& batches, const Lengths& lengths, const BatchLimits& limits) {
  std::vector<int> seen(lengths.size());
  for (const auto& batch : batches) {
    ASSERT_FALSE(batch.empty());
    int64_t longest = 0;
    for (const int64_t index : batch) {
      ++seen.at(static_cast<size_t>(index));
      longest = std::max(longest, lengths.at(static_cast<size_t>(index)));
    }
    const auto rows = static_cast<int64_t>(batch.size());
    EXPECT_LE(rows * longest, limits.tokens_per_batch);
    EXPECT_LE(rows, limits.max_sequences_per_batch);
  }
  EXPECT_EQ(seen, std::vector<int>(lengths.size(), 1));
}

/// Lengths as chat data has them: many short, few very long (log-normal, median 600).
Lengths chat_lengths(size_t count, int64_t longest) {
  std::mt19937 generator(7);  // NOLINT: reproducible on purpose
  Lengths lengths;
  for (size_t i = 0; i < count; ++i) {
    double normal = -6;
    for (int k = 0; k < 12; ++k)
      normal += static_cast<double>(generator()) / 4294967296.0;
    lengths.push_back(std::clamp<int64_t>(std::llround(600 * std::exp(normal)), 2, longest));
  }
  return lengths;
}

TEST(LengthBuckets, HoldTheBudgetBesideOneLongSequence) {  // F15 (a)
  Lengths lengths(64, 2);
  lengths.push_back(128);
  for (const int64_t buckets : {1, 2, 6}) {
    const BatchLimits limits{256, 64, buckets};
    for (uint64_t epoch = 0; epoch < 5; ++epoch)
      expect_valid(plan_epoch(lengths, limits, 1, epoch), lengths, limits);
  }
}

TEST(LengthBuckets, PutShortSequencesTogether) {  // F15 (b), after the long one is skipped
  const Batches batches = plan_epoch({4, 8}, {16, 64, 1}, 0, 0);
  ASSERT_EQ(batches.size(), 1U);
  EXPECT_EQ(batches[0].size(), 2U);
}

TEST(LengthBuckets, UseEachSequenceOncePerEpoch) {  // F15 (c)
  const Lengths lengths = {3, 3, 3, 9, 9, 9, 9, 17};
  for (const int64_t buckets : {1, 2, 3, 6, 20}) {
    const BatchLimits limits{18, 64, buckets};
    for (uint64_t epoch = 0; epoch < 2; ++epoch)
      expect_valid(plan_epoch(lengths, limits, 0, epoch), lengths, limits);
  }
}

TEST(LengthBuckets, MakeOneBatchOfOneSequence) {  // F15 (d)
  EXPECT_EQ(plan_epoch({5}, {5, 1, 6}, 0, 0), (Batches{{0}}));
}

TEST(LengthBuckets, MakeNoBatchOfNothing) { EXPECT_TRUE(plan_epoch({}, {5, 1, 6}, 0, 0).empty()); }

TEST(LengthBuckets, DoNotAcceptASequenceThatFitsNoBatch) {  // F15 (e): the caller skips it
  EXPECT_THROW(plan_epoch({4, 40}, {16, 64, 1}, 0, 0), std::logic_error);
}

TEST(LengthBuckets, HoldTheLimitOfSequences) {
  const Lengths lengths(100, 1);
  const BatchLimits limits{1000, 8, 6};
  const Batches batches = plan_epoch(lengths, limits, 0, 0);
  expect_valid(batches, lengths, limits);
  EXPECT_EQ(batches.size(), 13U);  // ceil(100 / 8): only one batch is not full
}

TEST(LengthBuckets, HoldAllRulesForManyShapesOfData) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    std::mt19937_64 generator(seed);
    const auto draw = [&](uint64_t low, uint64_t high) {
      return static_cast<int64_t>(low + generator() % (high - low + 1));
    };
    const BatchLimits limits{draw(8, 200), draw(1, 12), draw(1, 9)};
    Lengths lengths(static_cast<size_t>(draw(1, 300)));
    for (auto& length : lengths)
      length = draw(1, static_cast<uint64_t>(limits.tokens_per_batch));
    SCOPED_TRACE(seed);
    expect_valid(plan_epoch(lengths, limits, seed, seed), lengths, limits);
  }
}

TEST(LengthBuckets, FollowFromSeedAndEpochAlone) {
  const Lengths lengths = chat_lengths(500, 2048);
  const BatchLimits limits{8192, 64, 6};
  const Batches first = plan_epoch(lengths, limits, 3, 2);
  plan_epoch(lengths, limits, 9, 9);
  EXPECT_EQ(plan_epoch(lengths, limits, 3, 2), first);
  EXPECT_NE(plan_epoch(lengths, limits, 3, 3), first);
  EXPECT_NE(plan_epoch(lengths, limits, 4, 2), first);
}

TEST(LengthBuckets, GiveASequenceOtherNeighboursInTheNextEpoch) {
  const Lengths lengths(64, 10);
  std::set<std::set<int64_t>> seen;
  for (uint64_t epoch = 0; epoch < 4; ++epoch) {
    for (const auto& batch : plan_epoch(lengths, {80, 64, 6}, 0, epoch))
      seen.insert(std::set<int64_t>(batch.begin(), batch.end()));
  }
  // 4 epochs of 8 batches; two epochs share a given set of 8 of 64 by a chance of 1 : 10^9.
  EXPECT_EQ(seen.size(), 32U);
}

TEST(LengthBuckets, DoNotRunThroughTheBatchesByLength) {
  const Lengths lengths = chat_lengths(2000, 4096);
  const Batches batches = plan_epoch(lengths, {16384, 64, 6}, 0, 0);
  Lengths longest;
  for (const auto& batch : batches) {
    longest.push_back(0);
    for (const int64_t index : batch)
      longest.back() = std::max(longest.back(), lengths[static_cast<size_t>(index)]);
  }
  int64_t rises = 0;
  for (size_t i = 1; i < longest.size(); ++i)
    rises += longest[i] > longest[i - 1] ? 1 : 0;
  // A shuffled list rises in about half of its steps: variance (n + 1) / 12; 6 deviations.
  const auto n = static_cast<double>(longest.size());
  EXPECT_NEAR(static_cast<double>(rises), (n - 1) / 2, 6 * std::sqrt((n + 1) / 12) + n / 50);
}

TEST(LengthBuckets, LeaveLittlePaddingOnChatData) {
  const Lengths lengths = chat_lengths(20000, 8192);
  const BatchLimits limits{49152, 64, 6};
  const Batches batches = plan_epoch(lengths, limits, 0, 0);
  expect_valid(batches, lengths, limits);
  // Batches of neighbours in the shuffled order lose more than half on such data.
  EXPECT_LT(padding_share(lengths, batches), 0.03);
}

TEST(BucketEnds, LeaveTheLeastPadding) {
  // Two clusters: three buckets cut between them and once more inside the wider one.
  const Lengths lengths = {10, 11, 12, 100, 120, 200, 210};
  EXPECT_EQ(choose_bucket_ends(lengths, 1), (Lengths{211}));
  EXPECT_EQ(choose_bucket_ends(lengths, 2), (Lengths{13, 211}));
  EXPECT_EQ(choose_bucket_ends(lengths, 3), (Lengths{13, 121, 211}));
  EXPECT_EQ(choose_bucket_ends({5, 5, 5}, 6), (Lengths{6}));
  EXPECT_EQ(choose_bucket_ends({7, 5}, 6), (Lengths{6, 8}));
}

TEST(BucketEnds, AreAsGoodAsAnyOther) {
  std::mt19937_64 generator(3);
  const auto cost = [](const Lengths& lengths, const Lengths& ends) {
    int64_t padded = 0;
    for (const int64_t length : lengths)
      padded += *std::upper_bound(ends.begin(), ends.end(), length) - 1;
    return padded;
  };
  for (int round = 0; round < 50; ++round) {
    Lengths lengths(12);
    for (auto& length : lengths)
      length = 1 + static_cast<int64_t>(generator() % 40);
    const int64_t best = cost(lengths, choose_bucket_ends(lengths, 3));
    const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    for (int64_t a = 2; a <= longest; ++a)
      for (int64_t b = a + 1; b <= longest; ++b)
        ASSERT_LE(best, cost(lengths, {a, b, longest + 1})) << round;
  }
}

TEST(BucketEnds, CountABatchByItsLongestSequence) {
  EXPECT_EQ(count_by_bucket({1, 4, 5, 9}, {{0, 1}, {0, 2}, {3}, {1}}, {5, 10}), (Lengths{2, 2}));
}

TEST(PaddingShare, CountsRowsTimesTheLongest) {
  EXPECT_EQ(padding_share({2, 4, 6}, {{0, 1}, {2}}), 1 - 12.0 / 14.0);
  EXPECT_EQ(padding_share({5, 5}, {{0, 1}}), 0);
  EXPECT_EQ(padding_share({}, {}), 0);
}

}  // namespace
}  // namespace draftsmith::data
