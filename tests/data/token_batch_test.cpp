// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/token_batch.h"

#include <gtest/gtest.h>

#include <torch/types.h>

namespace draftsmith::data {
namespace {

TEST(PadSequences, FillsRowsOnTheRightWithUnsupervisedZeros) {
  const auto batch = pad_sequences({{{5, 6, 7}, {0, 1, 1}}, {{8}, {1}}, {{}, {}}}, {40, 2, 9});
  EXPECT_TRUE(torch::equal(
      batch.ids, torch::tensor({5, 6, 7, 8, 0, 0, 0, 0, 0}, torch::kLong).view({3, 3})));
  EXPECT_TRUE(torch::equal(
      batch.mask, torch::tensor({0, 1, 1, 1, 0, 0, 0, 0, 0}, torch::kByte).view({3, 3})));
  EXPECT_EQ(batch.lengths, (std::vector<int64_t>{3, 1, 0}));
  EXPECT_EQ(batch.sequences, (std::vector<int64_t>{40, 2, 9}));
}

TEST(PadSequences, DoesNotMakeABatchOfNothing) {
  EXPECT_THROW(pad_sequences({}, {}), std::logic_error);
  EXPECT_THROW(pad_sequences({{{}, {}}}, {0}), std::logic_error);
}

}  // namespace
}  // namespace draftsmith::data
