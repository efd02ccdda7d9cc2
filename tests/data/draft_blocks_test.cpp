// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/draft_blocks.h"

#include <gtest/gtest.h>

#include <cmath>

#include <torch/types.h>

#include "draftsmith/base/error.h"

#include "tests/base/expect_error.h"
#include "tests/support/golden.h"

namespace draftsmith::data {
namespace {

using testing::expect_error;
using Values = std::vector<int64_t>;

constexpr int64_t kMask = 99;

torch::Tensor row_of(const Values& values) {
  return torch::tensor(values, torch::kLong).unsqueeze(0);
}

BlockRows rows_of(const Values& ids, const Values& mask, const Values& documents = {}) {
  return {
      row_of(ids), row_of(mask).to(torch::kByte),
      documents.empty() ? torch::Tensor() : row_of(documents)};
}

Anchors anchors_at(const Values& positions, const Values& keep) {
  return {row_of(positions), row_of(keep).to(torch::kBool)};
}

/// The values of block n of the only row.
Values block_of(const torch::Tensor& tensor, int64_t n) {
  const auto block = tensor[0][n].to(torch::kLong).contiguous();
  return {block.data_ptr<int64_t>(), block.data_ptr<int64_t>() + block.numel()};
}

void expect_weights(const DraftBlocks& blocks, int64_t n, const std::vector<double>& wanted) {
  ASSERT_EQ(blocks.weights.scalar_type(), torch::kFloat);
  for (size_t k = 0; k < wanted.size(); ++k) {
    const double weight = blocks.weights[0][n][static_cast<int64_t>(k)].item<double>();
    // One rounding to float32 of a number of at most 1.
    EXPECT_NEAR(weight, wanted[k], std::ldexp(1.0, -24)) << "block " << n << ", slot " << k;
  }
}

class WorkedExample : public ::testing::Test {
 protected:
  const BlockRows rows_ =
      rows_of({11, 12, 13, 14, 15, 16, 17, 18, 19, 20}, {0, 0, 0, 1, 1, 1, 0, 1, 1, 0});
  const DraftBlocks blocks_ = make_draft_blocks(rows_, anchors_at({3, 7}, {1, 1}), {4, kMask, 7.0});
};

TEST_F(WorkedExample, GivesIdsAndPositionsOfTheSpecification) {
  EXPECT_EQ(block_of(blocks_.block_ids, 0), (Values{14, kMask, kMask, kMask}));
  EXPECT_EQ(block_of(blocks_.block_ids, 1), (Values{18, kMask, kMask, kMask}));
  EXPECT_EQ(block_of(blocks_.positions, 0), (Values{3, 4, 5, 6}));
  EXPECT_EQ(block_of(blocks_.positions, 1), (Values{7, 8, 9, 10}));
  EXPECT_TRUE(torch::equal(blocks_.context_positions, torch::arange(10).unsqueeze(0)));
}

TEST_F(WorkedExample, GivesLabelsAndTeacherRowsOfTheSpecification) {
  EXPECT_EQ(block_of(blocks_.labels, 0), (Values{14, 15, 16, 17}));
  EXPECT_EQ(block_of(blocks_.labels, 1), (Values{18, 19, 20, 20}));  // the last one is clamped
  EXPECT_EQ(block_of(blocks_.teacher_rows, 0), (Values{-1, 3, 4, -1}));
  EXPECT_EQ(block_of(blocks_.teacher_rows, 1), (Values{-1, 7, -1, -1}));
}

TEST_F(WorkedExample, GivesWeightsAndTheirSumOfTheSpecification) {
  expect_weights(blocks_, 0, {0, 1, std::exp(-1.0 / 7), 0});
  expect_weights(blocks_, 1, {0, 1, 0, 0});
  EXPECT_NEAR(blocks_.weights.sum().item<double>(), 2.8669, 5e-5);  // the printed digits
}

TEST_F(WorkedExample, GivesALayoutThatShowsTheContextBeforeEachAnchor) {
  EXPECT_EQ(blocks_.layout.block_size, 4);
  EXPECT_TRUE(torch::equal(blocks_.layout.anchors, row_of({3, 7})));
  EXPECT_TRUE(torch::equal(blocks_.layout.context_begin, row_of({0, 0})));
  EXPECT_TRUE(blocks_.layout.keep.all().item<bool>());
}

// F02: input, label and weight of a slot belong to the same position.
TEST(DraftBlocks, AreNotOneSlotOutOfStepWithInference) {
  const auto blocks = make_draft_blocks(
      {torch::arange(100, 112).unsqueeze(0), torch::ones({1, 12}, torch::kByte), {}},
      anchors_at({3}, {1}), {4, kMask, 7.0});
  EXPECT_EQ(block_of(blocks.block_ids, 0), (Values{103, kMask, kMask, kMask}));
  EXPECT_EQ(block_of(blocks.labels, 0), (Values{103, 104, 105, 106}));
  EXPECT_EQ(block_of(blocks.teacher_rows, 0), (Values{-1, 3, 4, 5}));
  expect_weights(blocks, 0, {0, 1, std::exp(-1.0 / 7), std::exp(-2.0 / 7)});
  const auto printed = torch::tensor({0.0, 1.0, 0.86688, 0.75148}, torch::kDouble);
  EXPECT_LE(testing::max_difference(blocks.weights[0][0], printed), 5e-6);
}

TEST(DraftBlocks, HaveNoDecayWhenGammaIsZero) {
  const auto blocks = make_draft_blocks(
      rows_of({1, 2, 3, 4, 5}, {1, 1, 1, 1, 1}), anchors_at({0}, {1}), {4, kMask, 0});
  expect_weights(blocks, 0, {0, 1, 1, 1});
}

TEST(DraftBlocks, LoseOnlyTheSlotOfAHole) {
  const auto blocks = make_draft_blocks(
      rows_of({1, 2, 3, 4, 5, 6}, {1, 1, 0, 1, 0, 1}), anchors_at({0}, {1}), {6, kMask, 2.0});
  expect_weights(blocks, 0, {0, 1, 0, std::exp(-1.0), 0, std::exp(-2.0)});
  EXPECT_EQ(block_of(blocks.teacher_rows, 0), (Values{-1, 0, -1, 2, -1, 4}));
}

TEST(DraftBlocks, MayReachBeyondTheEndOfTheRow) {
  const auto blocks =
      make_draft_blocks(rows_of({1, 2, 3}, {1, 1, 1}), anchors_at({1, 2}, {1, 1}), {4, kMask, 0});
  EXPECT_EQ(block_of(blocks.positions, 0), (Values{1, 2, 3, 4}));
  EXPECT_EQ(block_of(blocks.labels, 0), (Values{2, 3, 3, 3}));
  expect_weights(blocks, 0, {0, 1, 0, 0});
  EXPECT_EQ(block_of(blocks.block_ids, 1), (Values{3, kMask, kMask, kMask}));
  expect_weights(blocks, 1, {0, 0, 0, 0});
  EXPECT_EQ(block_of(blocks.teacher_rows, 1), (Values{-1, -1, -1, -1}));
}

TEST(DraftBlocks, RestartPositionsAndCutLabelsAtDocuments) {
  const auto blocks = make_draft_blocks(
      rows_of({10, 11, 12, 20, 21, 22, 23, 0}, Values(8, 1), {5, 5, 5, 2, 2, 2, 2, -1}),
      anchors_at({1, 4, 5}, {1, 1, 1}), {4, kMask, 0});
  EXPECT_TRUE(torch::equal(blocks.context_positions.slice(1, 0, 7), row_of({0, 1, 2, 0, 1, 2, 3})));
  EXPECT_EQ(block_of(blocks.positions, 0), (Values{1, 2, 3, 4}));
  EXPECT_EQ(block_of(blocks.positions, 1), (Values{1, 2, 3, 4}));
  EXPECT_EQ(block_of(blocks.positions, 2), (Values{2, 3, 4, 5}));
  expect_weights(blocks, 0, {0, 1, 0, 0});
  expect_weights(blocks, 1, {0, 1, 1, 0});
  expect_weights(blocks, 2, {0, 1, 0, 0});
  EXPECT_EQ(block_of(blocks.teacher_rows, 1), (Values{-1, 4, 5, -1}));
  EXPECT_TRUE(torch::equal(blocks.layout.context_begin, row_of({0, 3, 3})));
}

TEST(DraftBlocks, AreNotKeptWhenTheirAnchorStandsInPadding) {
  const auto blocks = make_draft_blocks(
      rows_of({10, 11, 12, 0, 0, 0}, {1, 1, 1, 1, 1, 1}, {0, 0, 0, -1, -1, -1}),
      anchors_at({1, 3}, {1, 1}), {3, kMask, 0});
  EXPECT_TRUE(torch::equal(blocks.layout.keep, row_of({1, 0}).to(torch::kBool)));
  EXPECT_EQ(block_of(blocks.block_ids, 1), (Values{kMask, kMask, kMask}));
  expect_weights(blocks, 0, {0, 1, 0});  // position 3 is padding although its mask is 1
  expect_weights(blocks, 1, {0, 0, 0});
}

TEST(DraftBlocks, HoldNothingWhenTheyAreNotKept) {
  // An anchor outside the row does not matter in a block that is not kept.
  const auto blocks = make_draft_blocks(
      rows_of({1, 2, 3, 4, 5}, {1, 1, 1, 1, 1}), anchors_at({1, 2, 1000}, {1, 0, 0}),
      {3, kMask, 0});
  for (const int64_t n : {1, 2}) {
    EXPECT_EQ(block_of(blocks.block_ids, n), (Values{kMask, kMask, kMask}));
    EXPECT_EQ(block_of(blocks.positions, n), (Values{0, 1, 2}));
    EXPECT_EQ(block_of(blocks.teacher_rows, n), (Values{-1, -1, -1}));
    expect_weights(blocks, n, {0, 0, 0});
    EXPECT_EQ(blocks.layout.anchors[0][n].item<int64_t>(), 0);
    EXPECT_FALSE(blocks.layout.keep[0][n].item<bool>());
  }
  EXPECT_EQ(block_of(blocks.block_ids, 0), (Values{2, kMask, kMask}));
}

TEST(DraftBlocks, TreatEachRowOfABatchAlone) {
  const auto ids = torch::tensor({1, 2, 3, 4, 11, 12, 13, 14}, torch::kLong).view({2, 4});
  const auto mask = torch::tensor({1, 1, 1, 1, 0, 1, 1, 0}, torch::kByte).view({2, 4});
  const Anchors anchors{
      torch::tensor({0, 2, 1, 0}, torch::kLong).view({2, 2}),
      torch::tensor({1, 1, 1, 0}).to(torch::kBool).view({2, 2})};
  const BlockRule rule{3, kMask, 5.0};
  const auto both = make_draft_blocks({ids, mask, {}}, anchors, rule);
  for (int64_t b = 0; b < 2; ++b) {
    const auto alone = make_draft_blocks(
        {ids.slice(0, b, b + 1), mask.slice(0, b, b + 1), {}},
        {anchors.positions.slice(0, b, b + 1), anchors.keep.slice(0, b, b + 1)}, rule);
    EXPECT_TRUE(torch::equal(both.block_ids[b], alone.block_ids[0]));
    EXPECT_TRUE(torch::equal(both.positions[b], alone.positions[0]));
    EXPECT_TRUE(torch::equal(both.labels[b], alone.labels[0]));
    EXPECT_TRUE(torch::equal(both.weights[b], alone.weights[0]));
    EXPECT_TRUE(torch::equal(both.teacher_rows[b], alone.teacher_rows[0]));
  }
}

TEST(DraftBlocks, AcceptEveryKindOfMask) {
  const BlockRule rule{4, kMask, 7.0};
  const auto anchors = anchors_at({0}, {1});
  auto rows = rows_of({1, 2, 3, 4, 5}, {1, 1, 0, 1, 1});
  const auto wanted = make_draft_blocks(rows, anchors, rule).weights;
  for (const auto dtype : {torch::kBool, torch::kFloat, torch::kLong}) {
    rows.mask = rows.mask.to(dtype);
    EXPECT_TRUE(torch::equal(make_draft_blocks(rows, anchors, rule).weights, wanted)) << dtype;
  }
}

TEST(DraftBlocks, HaveTheWeightsThatTheFixtureWasTrainedWith) {
  const auto golden = testing::golden("drafter/full/expected.safetensors");
  const auto mask = golden.tensor("loss_mask");
  const auto keep = golden.tensor("keep");
  const auto anchors = golden.tensor("anchors");
  const auto blocks =
      make_draft_blocks({golden.tensor("input_ids"), mask, {}}, {anchors, keep}, {4, 205, 10.0});
  const int64_t length = mask.size(1);
  for (int64_t b = 0; b < keep.size(0); ++b) {
    for (int64_t n = 0; n < keep.size(1); ++n) {
      for (int64_t k = 0; k < 4; ++k) {
        const int64_t i = anchors[b][n].item<int64_t>() + k;
        const bool has_label =
            keep[b][n].item<double>() != 0 && k > 0 && i < length && mask[b][i].item<double>() != 0;
        const double wanted = has_label ? std::exp(-static_cast<double>(k - 1) / 10) : 0;
        EXPECT_NEAR(blocks.weights[b][n][k].item<double>(), wanted, std::ldexp(1.0, -24));
      }
    }
  }
  EXPECT_GT(blocks.weights.sum().item<double>(), 0);
}

TEST(DraftBlocks, RefuseAnAnchorOutsideItsRow) {
  const auto rows = rows_of({1, 2, 3}, {1, 1, 1});
  for (const int64_t anchor : {int64_t{3}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    expect_error<ShapeError>(
        [&] {
          make_draft_blocks(rows, anchors_at({0, anchor}, {1, 1}), {2, kMask, 0});
        },
        {"anchor", "from 0 to 2", std::to_string(anchor), "row 0, block 1"});
  }
}

TEST(DraftBlocks, RefuseTensorsThatDoNotFit) {
  const BlockRule rule{2, kMask, 0};
  const auto good = rows_of({1, 2, 3}, {1, 1, 1});
  const auto anchors = anchors_at({0, 1}, {1, 1});
  expect_error<ShapeError>(
      [&] {
        make_draft_blocks(rows_of({1, 2, 3}, {1, 1}), anchors, rule);
      },
      {"loss_mask"});
  expect_error<ShapeError>(
      [&] {
        make_draft_blocks(rows_of({1, 2, 3}, {1, 1, 1}, {0, 0}), anchors, rule);
      },
      {"document_ids"});
  expect_error<ShapeError>(
      [&] {
        make_draft_blocks(good, anchors_at({0, 1}, {1}), rule);
      },
      {"keep"});
  expect_error<ShapeError>(
      [&] {
        make_draft_blocks(good, {torch::zeros({2, 1}), torch::ones({2, 1})}, rule);
      },
      {"anchors"});
  expect_error<ShapeError>(
      [&] {
        make_draft_blocks({torch::zeros({3}), torch::ones({3}), {}}, anchors, rule);
      },
      {"input_ids"});
}

TEST(JoinRows, LeavesOutWhatIsNotKeptAndMovesRowsBehindEachOther) {
  const BlockRows rows{
      torch::arange(20, torch::kLong).view({2, 10}), torch::ones({2, 10}, torch::kByte), {}};
  const auto apart = make_draft_blocks(
      rows,
      {torch::tensor({3, 7, 5, 0}, torch::kLong).view({2, 2}),
       torch::tensor({true, true, true, false}).view({2, 2})},
      {4, 99, 0});
  const auto joined = join_rows(apart);
  const auto is = [](const torch::Tensor& tensor, std::vector<int64_t> values) {
    return tensor.flatten().equal(torch::tensor(values, torch::kLong));
  };
  EXPECT_EQ(joined.num_rows, 2);
  EXPECT_TRUE(is(joined.layout.anchors, {3, 7, 15}));
  EXPECT_TRUE(is(joined.layout.context_begin, {0, 0, 10}));
  EXPECT_TRUE(joined.layout.keep.all().item<bool>());
  EXPECT_TRUE(is(joined.positions[0][2], {5, 6, 7, 8}));  // of its own sequence
  EXPECT_TRUE(is(joined.context_positions[0].narrow(0, 9, 3), {9, 0, 1}));
  EXPECT_TRUE(is(joined.teacher_rows[0][0], {-1, 3, 4, 5}));
  EXPECT_TRUE(is(joined.teacher_rows[0][1], {-1, 7, 8, -1}));  // the row ends at 9
  EXPECT_TRUE(is(joined.teacher_rows[0][2], {-1, 15, 16, 17}));
  EXPECT_TRUE(joined.labels[0][2].equal(apart.labels[1][0]));
  EXPECT_EQ(joined.block_ids[0][2][0].item<int64_t>(), 15);
}

TEST(JoinRows, KeepsOneBlockWhereNoneIsKept) {
  const BlockRows rows{
      torch::zeros({2, 5}, torch::kLong), torch::zeros({2, 5}, torch::kByte), {}};
  const auto joined = join_rows(make_draft_blocks(
      rows, {torch::zeros({2, 1}, torch::kLong), torch::zeros({2, 1}, torch::kBool)}, {4, 9, 0}));
  EXPECT_EQ(joined.layout.keep.sizes(), (at::IntArrayRef{1, 1}));
  EXPECT_FALSE(joined.layout.keep.any().item<bool>());
  EXPECT_EQ(joined.weights.sum().item<double>(), 0);
}

}  // namespace
}  // namespace draftsmith::data
