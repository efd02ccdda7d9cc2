// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "draftsmith/ops/loss_rows.h"

namespace draftsmith::ops {
namespace {

using Rows = std::vector<int64_t>;

TEST(LossChunks, CountDistinctTeacherRowsWithTheRows) {
  const Rows teachers = {4, 5, 6, 5, 6, 7, 4};
  const auto chunks = plan_loss_chunks(teachers.data(), 7, 6);
  ASSERT_EQ(chunks.size(), 3U);  // 3 rows + {4, 5, 6}; one more row would make 7
  EXPECT_EQ(chunks[0].end, 3);
  EXPECT_EQ(chunks[0].distinct, (Rows{4, 5, 6}));
  EXPECT_EQ(chunks[0].inverse, (Rows{0, 1, 2}));
  EXPECT_EQ(chunks[1].begin, 3);
  EXPECT_EQ(chunks[1].end, 6);
  EXPECT_EQ(chunks[1].distinct, (Rows{5, 6, 7}));
}

TEST(LossChunks, CoverEveryRowOnceWithinTheCapacity) {
  Rows teachers;
  for (int64_t r = 0; r < 200; ++r)
    teachers.push_back(r / 15 * 4 + r % 15);
  for (const bool has_teacher : {false, true}) {
    for (const int64_t capacity : {1, 2, 3, 31, 64, 1000}) {
      int64_t next = 0;
      for (const auto& chunk :
           plan_loss_chunks(has_teacher ? teachers.data() : nullptr, 200, capacity)) {
        EXPECT_EQ(chunk.begin, next);
        next = chunk.end;
        const int64_t rows = chunk.end - chunk.begin;
        EXPECT_GE(rows, 1);
        if (rows > 1) {
          EXPECT_LE(rows + static_cast<int64_t>(chunk.distinct.size()), capacity);
        }
        for (int64_t r = 0; has_teacher && r < rows; ++r)
          EXPECT_EQ(
              chunk.distinct[static_cast<size_t>(chunk.inverse[static_cast<size_t>(r)])],
              teachers[static_cast<size_t>(chunk.begin + r)]);
      }
      EXPECT_EQ(next, 200);
    }
  }
}

TEST(LossChunks, AreEvenWhereNoneIsSavedByAFullOne) {
  const auto chunks = plan_even_chunks(nullptr, 614, 512);
  ASSERT_EQ(chunks.size(), 2U);
  EXPECT_EQ(chunks[0].end, 307);
  EXPECT_EQ(plan_even_chunks(nullptr, 500, 512).size(), 1U);
}

TEST(LossChunks, AreNoneWithoutRows) { EXPECT_TRUE(plan_loss_chunks(nullptr, 0, 8).empty()); }

}  // namespace
}  // namespace draftsmith::ops
