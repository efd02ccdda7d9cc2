// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"
#include "draftsmith/data/token_dataset.h"

#include "tests/base/expect_error.h"
#include "tests/data/arrow_shards.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"

namespace draftsmith::data {
namespace {

namespace fs = std::filesystem;
using testing::Column;
using testing::expect_error;
using testing::make_record_batch;
using testing::make_token_batch;
using testing::TempFolder;
using testing::write_shard;
using testing::write_shard_folder;
using testing::write_state;

/// Two rows of three tokens whose offsets within the ids are replaced by these.
std::shared_ptr<arrow::RecordBatch> with_offsets(std::vector<int32_t> offsets) {
  const auto whole = make_token_batch("[[0,1,2],[1,2,3]]", "[[0,1,1],[0,1,1]]");
  const auto ids = std::static_pointer_cast<arrow::ListArray>(whole->column(0));
  const auto broken = std::make_shared<arrow::ListArray>(
      ids->type(), 2, arrow::Buffer::FromVector(std::move(offsets)), ids->values());
  return arrow::RecordBatch::Make(whole->schema(), 2, {broken, whole->column(1)});
}

/// Opens a dataset of six tokens or fewer and reads all of it.
void read_all(const fs::path& path) {
  const auto dataset = TokenDataset::open(path, "");
  for (int64_t i = 0; i < dataset.num_sequences(); ++i) {
    ASSERT_GE(dataset.length(i), 0);
    ASSERT_LE(dataset.length(i), 6);
    const auto sequence = dataset.sequence(i);
    ASSERT_EQ(sequence.ids.size(), sequence.mask.size());
  }
}

TEST(DamagedDataset, WithListOffsetsOutsideTheIdsIsRefused) {
  const TempFolder folder;
  for (const std::vector<int32_t>& offsets : std::vector<std::vector<int32_t>>{
           {0, 1000000, 6},
           {0, -3, 6},
           {0, 7, 6},
           {0, 3, 1000000},
           {0, 3, 7},
           {0, 3, 2},
           {0, 3, -1},
           {0, INT32_MAX, 6},
           {0, INT32_MIN, 6}}) {
    SCOPED_TRACE(::testing::PrintToString(offsets));
    const auto path = write_shard_folder(folder, "offsets", {with_offsets(offsets)});
    expect_error<DataError>([&] { read_all(path); }, {"data.arrow"});
  }
  EXPECT_NO_THROW(read_all(write_shard_folder(folder, "good", {with_offsets({0, 3, 6})})));
}

TEST(DamagedDataset, IsReadOrRefusedButNeverCrashesWithAnyDamagedByte) {
  const TempFolder folder;
  const auto path = write_shard_folder(
      folder, "bytes", {make_token_batch("[[0,1,2],[1,2,3]]", "[[0,1,1],[0,1,1]]")});
  const std::string whole = read_file(path / "data.arrow");
  int refused = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string bytes = whole;
    bytes[i] = static_cast<char>(bytes[i] ^ 0x81);  // the sign and the lowest bit
    folder.write("bytes/data.arrow", bytes);
    try {
      read_all(path);
    } catch (const DataError&) {
      ++refused;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "byte " << i << ": " << error.what();
    }
  }
  EXPECT_GT(refused, 0);
}

/// One row of `count` zeros of a byte each.
std::shared_ptr<arrow::RecordBatch> make_long_row(int64_t count) {
  const auto type = arrow::list(arrow::int8());
  const auto values = std::make_shared<arrow::Int8Array>(
      count,
      arrow::Buffer::FromString(std::string(static_cast<size_t>(count), '\0')));
  const auto offsets =
      arrow::Buffer::FromVector(std::vector<int32_t>{0, static_cast<int32_t>(count)});
  const auto row = std::make_shared<arrow::ListArray>(type, 1, offsets, values);
  return arrow::RecordBatch::Make(
      arrow::schema({arrow::field("input_ids", type), arrow::field("loss_mask", type)}), 1,
      {row, row});
}

TEST(DamagedDataset, WithARowThatWouldFillTheMemoryIsRefused) {
  const TempFolder folder;
  const auto path = write_shard_folder(folder, "d", {make_long_row((1 << 23) + 1)});
  const auto dataset = TokenDataset::open(path, "");
  for (const auto& read : std::vector<std::function<void()>>{
           [&] { dataset.sequence(0); }, [&] { dataset.facts(0); }})
    expect_error<DataError>(read, {"row 0", "8388608 tokens", "8388609"});
}

TEST(DamagedDataset, IsNotDecompressedFarBeyondItsSize) {
  const TempFolder folder;
  const auto path = write_shard_folder(folder, "d", {make_token_batch("[[1]]", "[[1]]")});
  const auto write = [&](int64_t count) {
    write_shard(
        path / "data.arrow", {make_long_row(count)}, testing::ShardFormat::kStream,
        arrow::Compression::ZSTD);
    EXPECT_LT(fs::file_size(path / "data.arrow"), 100'000U);
  };
  write(1000);
  EXPECT_EQ(TokenDataset::open(path, "").length(0), 1000);
  write(100'000'000);
  expect_error<DataError>([&] { TokenDataset::open(path, ""); }, {"data.arrow", "Arrow file"});
}

TEST(DamagedDataset, WithoutRowsIsRefused) {
  const TempFolder folder;
  const auto path = write_shard_folder(folder, "empty", {make_token_batch("[]", "[]")});
  expect_error<DataError>(
      [&] { TokenDataset::open(path, ""); }, {"empty", "at least one sequence"});
  write_state(path, {});
  expect_error<DataError>([&] { TokenDataset::open(path, ""); }, {"at least one sequence"});
}

TEST(DamagedDataset, NamesAMissingShard) {
  const TempFolder folder;
  const auto path = write_shard_folder(folder, "d", {make_token_batch("[[1]]", "[[1]]")});
  write_state(path, {"data.arrow", "data-00001-of-00002.arrow"});
  expect_error<DataError>(
      [&] { TokenDataset::open(path, ""); }, {"data-00001-of-00002.arrow", "no such file"});
}

TEST(DamagedDataset, NeverReadsAShardOutsideItsFolder) {
  const TempFolder folder;
  const auto path = write_shard_folder(folder, "d", {make_token_batch("[[1]]", "[[1]]")});
  write_shard(folder / "out.arrow", {make_token_batch("[[1]]", "[[1]]")});
  for (const std::string& name :
       {std::string("../out.arrow"), (folder / "out.arrow").string(), std::string("./data.arrow"),
        std::string(".."), std::string("."), std::string("")}) {
    SCOPED_TRACE(name);
    write_state(path, {name});
    expect_error<DataError>([&] { TokenDataset::open(path, ""); }, {folder.path().string()});
  }
}

TEST(DamagedDataset, ReadsNoShardTwiceOrOfANameThatNoFileHas) {
  const TempFolder folder;
  const auto path = write_shard_folder(folder, "d", {make_token_batch("[[1]]", "[[1]]")});
  write_state(path, {"data.arrow", "data.arrow"});
  expect_error<DataError>(
      [&] { TokenDataset::open(path, ""); }, {"state.json", "'data.arrow' twice"});
  write_state(path, {std::string(300, 'a')});
  expect_error<DataError>([&] { TokenDataset::open(path, ""); }, {"state.json", "filename"});
}

TEST(DamagedDataset, NamesAColumnThatIsMissing) {
  const TempFolder folder;
  const auto lists = arrow::list(arrow::int32());
  const auto no_ids =
      write_shard_folder(folder, "a", {make_record_batch({{"loss_mask", lists, "[[1]]"}})});
  expect_error<DataError>([&] { TokenDataset::open(no_ids, ""); }, {"input_ids", "data.arrow"});
  const auto no_mask =
      write_shard_folder(folder, "b", {make_record_batch({{"input_ids", lists, "[[1]]"}})});
  expect_error<DataError>(
      [&] { TokenDataset::open(no_mask, ""); }, {"loss_mask", "labels", "data.arrow"});
}

TEST(DamagedDataset, NamesAColumnOfTheWrongType) {
  const TempFolder folder;
  const auto lists = arrow::list(arrow::int32());
  const std::vector<Column> wrong = {
      {"x", arrow::list(arrow::utf8()), R"([["1"]])"},
      {"x", arrow::list(arrow::float32()), "[[1.5]]"},
      {"x", arrow::int32(), "[1]"},
      {"x", arrow::utf8(), R"(["1"])"},
      {"x", arrow::list(lists), "[[[1]]]"},
      {"x", arrow::fixed_size_list(arrow::int32(), 1), "[[1]]"}};
  for (Column column : wrong) {
    SCOPED_TRACE(column.type->ToString());
    column.name = "input_ids";
    const auto bad_ids = write_shard_folder(
        folder, "ids", {make_record_batch({column, {"loss_mask", lists, "[[1]]"}})});
    expect_error<DataError>([&] { TokenDataset::open(bad_ids, ""); }, {"input_ids", "data.arrow"});
    column.name = "loss_mask";
    const auto bad_mask = write_shard_folder(
        folder, "mask", {make_record_batch({{"input_ids", lists, "[[1]]"}, column})});
    expect_error<DataError>([&] { TokenDataset::open(bad_mask, ""); }, {"loss_mask", "data.arrow"});
  }
}

TEST(DamagedDataset, NamesAStateFileThatIsMissingOrNoList) {
  const TempFolder folder;
  const auto path = write_shard_folder(folder, "d", {make_token_batch("[[1]]", "[[1]]")});
  for (const char* text :
       {"", "{", "[]", "{}", R"({"_data_files": 1})", R"({"_data_files": ["data.arrow"]})",
        R"({"_data_files": [{}]})", R"({"_data_files": [{"filename": 3}]})"}) {
    SCOPED_TRACE(text);
    folder.write("d/state.json", text);
    expect_error<DataError>([&] { TokenDataset::open(path, ""); }, {"state.json"});
  }
  fs::remove(path / "state.json");
  expect_error<DataError>([&] { TokenDataset::open(path, ""); }, {"state.json"});
}

TEST(DamagedDataset, IsNamedWhenItIsNoFolder) {
  const TempFolder folder;
  folder.write("file", "x");
  expect_error<DataError>([&] { TokenDataset::open(folder / "file", ""); }, {"data.path", "file"});
  expect_error<DataError>(
      [&] { TokenDataset::open(folder / "none", ""); }, {"data.path", "none", "no such folder"});
}

TEST(DamagedDataset, IsRefusedWhenAShardIsNoArrowFile) {
  const TempFolder folder;
  const auto path = write_shard_folder(folder, "d", {make_token_batch("[[1]]", "[[1]]")});
  for (const std::string& text :
       {std::string("x"), std::string("ARROW1"), std::string(1000, 'x'), std::string(1000, '\0'),
        "ARROW1" + std::string(1000, 'x'), "\xff\xff\xff\xff" + std::string(100, '\x7f')}) {
    SCOPED_TRACE(text.substr(0, 8));
    folder.write("d/data.arrow", text);
    expect_error<DataError>([&] { TokenDataset::open(path, ""); }, {"d"});
  }
}

}  // namespace
}  // namespace draftsmith::data
