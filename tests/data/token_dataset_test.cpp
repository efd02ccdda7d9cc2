// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/token_dataset.h"

#include <gtest/gtest.h>

#include "draftsmith/base/error.h"

#include "tests/base/expect_error.h"
#include "tests/data/arrow_shards.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"

namespace draftsmith::data {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::fixture;
using testing::make_record_batch;
using testing::make_token_batch;
using testing::ShardFormat;
using testing::TempFolder;
using testing::write_shard;
using testing::write_shard_folder;
using testing::write_state;
using Ids = std::vector<int64_t>;
using Mask = std::vector<uint8_t>;

void expect_row(const TokenDataset& dataset, int64_t row, const Ids& ids, const Mask& mask) {
  SCOPED_TRACE(row);
  const auto sequence = dataset.sequence(row);
  EXPECT_EQ(sequence.ids, ids);
  EXPECT_EQ(sequence.mask, mask);
  EXPECT_EQ(dataset.length(row), static_cast<int64_t>(ids.size()));
}

/// Row i holds ids i, i+1, i+2, the last two supervised (F14).
void expect_counting_rows(const TokenDataset& dataset, int64_t count) {
  ASSERT_EQ(dataset.num_sequences(), count);
  for (int64_t i = 0; i < count; ++i)
    expect_row(dataset, i, {i, i + 1, i + 2}, {0, 1, 1});
}

TEST(DatasetFixture, OfTwoShardsIsReadInOrderWithoutTheStrayFile) {
  ASSERT_TRUE(fs::exists(fixture("arrow/two_shards/cache-abc.arrow")));
  const auto dataset = TokenDataset::open(fixture("arrow/two_shards"), "");
  expect_counting_rows(dataset, 5);
  int64_t supervised = 0;
  for (int64_t i = 0; i < 5; ++i)
    for (const uint8_t bit : dataset.sequence(i).mask)
      supervised += bit;
  EXPECT_EQ(supervised, 10);
}

TEST(DatasetFixture, OfSelectedRowsIsReadAsItWasSaved) {
  const auto dataset = TokenDataset::open(fixture("arrow/selected"), "");
  ASSERT_EQ(dataset.num_sequences(), 3);
  expect_row(dataset, 0, {4, 5, 6}, {0, 1, 1});
  expect_row(dataset, 1, {2, 3, 4}, {0, 1, 1});
  expect_row(dataset, 2, {0, 1, 2}, {0, 1, 1});
}

TEST(DatasetFixture, OfLargeListsAndBoolsIsRead) {
  const auto dataset = TokenDataset::open(fixture("arrow/large_list_bool"), "");
  ASSERT_EQ(dataset.num_sequences(), 3);
  expect_row(dataset, 0, {1, 2, 3}, {0, 1, 1});
  expect_row(dataset, 1, {4, 5, 6, 7, 8}, {1, 0, 0, 1, 1});
  expect_row(dataset, 2, {9, 10, 11, 12}, {0, 0, 0, 1});
}

TEST(DatasetFixture, OfSeveralSplitsNeedsTheNameOfOne) {
  const auto folder = fixture("arrow/dataset_dict");
  expect_counting_rows(TokenDataset::open(folder, "train"), 5);
  expect_counting_rows(TokenDataset::open(folder, "test"), 2);
  expect_error<ConfigError>(
      [&] { TokenDataset::open(folder, ""); }, {"data.split", "train", "test", "none"});
  expect_error<ConfigError>(
      [&] { TokenDataset::open(folder, "dev"); }, {"data.split", "train", "test", "'dev'"});
}

class BothFormats : public ::testing::TestWithParam<ShardFormat> {};
INSTANTIATE_TEST_SUITE_P(
    Dataset,
    BothFormats,
    ::testing::Values(ShardFormat::kStream, ShardFormat::kFile),
    [](const auto& info) { return info.param == ShardFormat::kStream ? "Stream" : "File"; });

TEST_P(BothFormats, AreReadWithSeveralRecordBatchesPerShard) {
  const TempFolder folder;
  const auto first = make_token_batch("[[0,1,2],[1,2,3]]", "[[0,1,1],[0,1,1]]");
  const auto empty = make_token_batch("[]", "[]");
  const auto second = make_token_batch("[[2,3,4]]", "[[0,1,1]]");
  const auto third = make_token_batch("[[3,4,5],[4,5,6]]", "[[0,1,1],[0,1,1]]");
  write_shard(folder / "b.arrow", {first, empty, second}, GetParam());
  write_shard(folder / "a.arrow", {third->Slice(0, 1), third->Slice(1)}, GetParam());
  write_state(folder.path(), {"b.arrow", "a.arrow"});
  expect_counting_rows(TokenDataset::open(folder.path(), ""), 5);
}

TEST_P(BothFormats, AreRefusedWhereverTheShardIsCutShort) {
  const TempFolder folder;
  const auto path = write_shard_folder(
      folder, "cut", {make_token_batch("[[0,1,2],[1,2,3]]", "[[0,1,1],[0,1,1]]")}, GetParam());
  const auto shard = path / "data.arrow";
  for (auto size = fs::file_size(shard) - 9; size > 7; size -= size > 64 ? 37 : 8) {
    SCOPED_TRACE(size);
    fs::resize_file(shard, size);
    expect_error<DataError>([&] { TokenDataset::open(path, ""); }, {"cut"});
  }
  fs::resize_file(shard, 0);
  expect_error<DataError>([&] { TokenDataset::open(path, ""); }, {"data.arrow"});
}

TEST(Dataset, ReadsEveryIntegerType) {
  const TempFolder folder;
  for (const auto& type :
       {arrow::int8(), arrow::uint8(), arrow::int16(), arrow::uint16(), arrow::int32(),
        arrow::uint32(), arrow::int64(), arrow::uint64()}) {
    SCOPED_TRACE(type->ToString());
    for (const auto& list : {arrow::list(type), arrow::large_list(type)}) {
      const auto path = write_shard_folder(
          folder, "typed",
          {make_record_batch(
              {{"input_ids", list, "[[1,127],[]]"}, {"loss_mask", list, "[[0,1],[]]"}})});
      const auto dataset = TokenDataset::open(path, "");
      expect_row(dataset, 0, {1, 127}, {0, 1});
      expect_row(dataset, 1, {}, {});
    }
  }
}

TEST(Dataset, ReadsLabelsAsAMask) {
  const TempFolder folder;
  const auto path = write_shard_folder(
      folder, "labels",
      {make_record_batch(
          {{"labels", arrow::list(arrow::int64()), "[[-100,-100,7,0]]"},
           {"input_ids", arrow::list(arrow::int32()), "[[5,6,7,0]]"}})});
  expect_row(TokenDataset::open(path, ""), 0, {5, 6, 7, 0}, {0, 0, 1, 1});
}

TEST(Dataset, ReadsAssistantMasks) {
  const TempFolder folder;
  const auto path = write_shard_folder(
      folder, "assistant",
      {make_record_batch(
          {{"input_ids", arrow::list(arrow::int32()), "[[5,6,7]]"},
           {"text", arrow::utf8(), R"(["ignored"])"},
           {"assistant_masks", arrow::list(arrow::boolean()), "[[false,true,true]]"}})});
  expect_row(TokenDataset::open(path, ""), 0, {5, 6, 7}, {0, 1, 1});
}

TEST(Dataset, AcceptsMaskColumnsThatAgreeAndRefusesOthers) {
  const TempFolder folder;
  const auto ids = arrow::list(arrow::int32());
  const auto path = write_shard_folder(
      folder, "both",
      {make_record_batch(
          {{"input_ids", ids, "[[5,6,7],[8,9,10]]"},
           {"loss_mask", ids, "[[0,1,1],[0,1,1]]"},
           {"labels", ids, "[[-100,6,7],[-100,-100,10]]"}})});
  const auto dataset = TokenDataset::open(path, "");
  expect_row(dataset, 0, {5, 6, 7}, {0, 1, 1});
  expect_error<DataError>([&] { dataset.sequence(1); }, {"row 1", "labels", "agree", "data.arrow"});
}

// F09: ten ids with nine mask values.
TEST(Dataset, NamesTheRowWhoseMaskHasAnotherLength) {
  const TempFolder folder;
  const auto good = make_token_batch("[[1],[2],[3]]", "[[1],[1],[1]]");
  const auto bad =
      make_token_batch("[[4],[0,1,2,3,4,5,6,7,8,9],[1]]", "[[1],[0,1,1,1,1,1,1,1,1],[1,1]]");
  const auto dataset = TokenDataset::open(write_shard_folder(folder, "d", {good, bad}), "");
  expect_row(dataset, 3, {4}, {1});
  expect_error<DataError>(
      [&] { dataset.sequence(4); }, {"row 4", "10 values of loss_mask", "9", "data.arrow"});
  expect_error<DataError>([&] { dataset.sequence(5); }, {"row 5"});
}

TEST(Dataset, NamesTheRowThatHoldsANull) {
  const TempFolder folder;
  const auto batch =
      make_token_batch("[[1,2],[1,null],null,[3,4],[5,6]]", "[[0,1],[0,1],[0,1],[0,null],null]");
  const auto dataset = TokenDataset::open(write_shard_folder(folder, "nulls", {batch}), "");
  expect_row(dataset, 0, {1, 2}, {0, 1});
  expect_error<DataError>([&] { dataset.sequence(1); }, {"row 1", "input_ids", "null"});
  expect_error<DataError>([&] { dataset.sequence(2); }, {"row 2", "input_ids", "null"});
  expect_error<DataError>([&] { dataset.sequence(3); }, {"row 3", "loss_mask", "null"});
  expect_error<DataError>([&] { dataset.sequence(4); }, {"row 4", "loss_mask", "null"});
}

TEST(CheckTokenIds, NamesThePositionOfTheFirstIdOutsideTheVocabulary) {
  EXPECT_NO_THROW(check_token_ids({0, 9}, 10, "row 3"));
  EXPECT_NO_THROW(check_token_ids({}, 10, "row 3"));
  expect_error<DataError>(
      [] {
        check_token_ids({1, 2, 10, -1}, 10, "row 3");
      },
      {"token 2", "10", "row 3"});
  expect_error<DataError>([] { check_token_ids({-1}, 10, "row 3"); }, {"token 0", "-1", "row 3"});
}

}  // namespace
}  // namespace draftsmith::data
