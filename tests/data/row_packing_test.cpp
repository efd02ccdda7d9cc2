// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/row_packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace draftsmith::data {
namespace {

using Lengths = std::vector<int64_t>;
using Rows = std::vector<std::vector<int64_t>>;

/// Each index once, no row empty, none too long. Returns the tokens of every row.
Lengths expect_valid(const Rows& rows, const Lengths& lengths, int64_t capacity) {
  std::vector<int> seen(lengths.size());
  Lengths sums;
  for (const auto& row : rows) {
    EXPECT_FALSE(row.empty());
    sums.push_back(0);
    for (const int64_t index : row) {
      ++seen.at(static_cast<size_t>(index));
      sums.back() += lengths.at(static_cast<size_t>(index));
    }
    EXPECT_LE(sums.back(), capacity);
  }
  EXPECT_EQ(seen, std::vector<int>(lengths.size(), 1));
  return sums;
}

Lengths random_lengths(size_t count, int64_t longest, uint64_t seed) {
  std::mt19937_64 generator(seed);
  Lengths lengths;
  for (size_t i = 0; i < count; ++i)
    lengths.push_back(1 + static_cast<int64_t>(generator() % static_cast<uint64_t>(longest)));
  return lengths;
}

TEST(PackRows, HoldEachSequenceOnce) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const int64_t capacity = 10 + static_cast<int64_t>(seed) * 7;
    const Lengths lengths = random_lengths(1 + seed * 13, capacity, seed);
    SCOPED_TRACE(seed);
    expect_valid(pack_rows(lengths, {capacity, 3 * capacity}, seed, seed), lengths, capacity);
  }
  EXPECT_TRUE(pack_rows({}, {8, 16}, 0, 0).empty());
  EXPECT_EQ(pack_rows({8}, {8, 16}, 0, 0), (Rows{{0}}));
}

TEST(PackRows, LeaveHardlyAnyRoom) {
  const Lengths lengths = random_lengths(20000, 4096, 1);
  const Lengths sums = expect_valid(pack_rows(lengths, {8192, 49152}, 0, 0), lengths, 8192);
  int64_t tokens = 0;
  for (const int64_t sum : sums)
    tokens += sum;
  EXPECT_GT(static_cast<double>(tokens), 0.99 * 8192 * static_cast<double>(sums.size()));
}

TEST(PackRows, FollowFromSeedAndEpochAlone) {
  const Lengths lengths = random_lengths(500, 100, 1);
  const Rows first = pack_rows(lengths, {300, 900}, 3, 2);
  pack_rows(lengths, {300, 900}, 9, 9);
  EXPECT_EQ(pack_rows(lengths, {300, 900}, 3, 2), first);
  EXPECT_NE(pack_rows(lengths, {300, 900}, 3, 3), first);
  EXPECT_NE(pack_rows(lengths, {300, 900}, 4, 2), first);
}

TEST(PackRows, DoNotCutASequence) {
  EXPECT_THROW(pack_rows({4, 9}, {8, 16}, 0, 0), std::logic_error);
}

}  // namespace
}  // namespace draftsmith::data
