// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <vector>

namespace draftsmith {
namespace {

// Orders and anchors of old runs depend on these values; they must not change.
TEST(HashKey, GivesTheSameValuesOnEveryMachine) {
  EXPECT_EQ(hash_key({0}), 0x6e789e6aa1b965f4ULL);  // second output of splitmix64 with seed 0
  EXPECT_EQ(hash_key({1}), 0xbeeb8da1658eec67ULL);
  EXPECT_EQ(hash_key({0, 0}), 0x46b73e79f0c37c00ULL);
  EXPECT_EQ(hash_key({1, 2, 3}), 0xd306214c1fe59365ULL);
  EXPECT_EQ(hash_key({UINT64_MAX}), 0xe99ff867dbf682c9ULL);
}

TEST(HashKey, DependsOnTheOrderOfItsParts) {
  EXPECT_EQ(hash_key({3, 2, 1}), 0x2bf20ea86b673712ULL);
  EXPECT_NE(hash_key({1, 2, 3}), hash_key({3, 2, 1}));
}

TEST(HashKey, GivesNoValueTwiceForSmallParts) {
  std::vector<uint64_t> values;
  for (uint64_t i = 0; i < 200; ++i)
    for (uint64_t j = 0; j < 200; ++j)
      values.push_back(hash_key({i, j}));
  std::sort(values.begin(), values.end());
  EXPECT_EQ(std::adjacent_find(values.begin(), values.end()), values.end());
}

TEST(HashKey, ChangesHalfOfTheBitsWhenOneBitOfAPartChanges) {
  // 64 flips x 64 bits: a fair coin gives 2048 with a standard deviation of 32; 6 of them.
  const uint64_t base = hash_key({7, 11});
  int changed = 0;
  for (int bit = 0; bit < 64; ++bit)
    changed += std::popcount(base ^ hash_key({7, 11ULL ^ (1ULL << bit)}));
  EXPECT_NEAR(changed, 2048, 6 * 32);
}

}  // namespace
}  // namespace draftsmith
