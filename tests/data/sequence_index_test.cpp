// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/sequence_index.h"

#include <gtest/gtest.h>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"
#include "draftsmith/data/batch_source.h"

#include "tests/base/expect_error.h"
#include "tests/data/arrow_shards.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_models.h"

namespace draftsmith::data {
namespace {

namespace fs = std::filesystem;
using testing::make_sequence;
using testing::TempFolder;

std::vector<TokenSequence> some_sequences() {
  return {
      make_sequence(9, 3, 1), make_sequence(30, 20, 2), make_sequence(5, 5, 3),
      make_sequence(4, 3, 4), TokenSequence{}};
}

void expect_equal(const SequenceIndex& left, const SequenceIndex& right) {
  EXPECT_EQ(left.lengths, right.lengths);
  EXPECT_EQ(left.first_anchors, right.first_anchors);
  EXPECT_EQ(left.smallest_id, right.smallest_id);
  EXPECT_EQ(left.largest_id, right.largest_id);
}

struct Index : ::testing::Test {
  TempFolder folder;
  fs::path path = testing::write_dataset_folder(folder, "dataset", some_sequences());
  fs::path beside = path / "draftsmith-index.bin";
  TokenDataset open() const { return TokenDataset::open(path, ""); }
  bool is_scanned(const fs::path& other = {}) const {
    bool was_scanned = false;
    expect_equal(load_index(open(), other, was_scanned), scan_sequences(open()));
    return was_scanned;
  }
};

TEST_F(Index, HoldsWhatTheSequencesHold) {
  const auto index = scan_sequences(open());
  const uint32_t none = SequenceIndex::kNoAnchor;
  EXPECT_EQ(index.lengths, (std::vector<uint32_t>{9, 30, 5, 4, 0}));
  EXPECT_EQ(index.first_anchors, (std::vector<uint32_t>{3, 20, none, none, none}));
  int64_t smallest = INT64_MAX;
  int64_t largest = 0;
  for (const auto& sequence : some_sequences()) {
    for (const int64_t id : sequence.ids) {
      smallest = std::min(smallest, id);
      largest = std::max(largest, id);
    }
  }
  EXPECT_EQ(index.smallest_id, smallest);
  EXPECT_EQ(index.largest_id, largest);
}

TEST_F(Index, SeesTheSameInEveryKindOfMaskColumn) {
  const auto ids = arrow::list(arrow::int32());
  const testing::Column tokens{"input_ids", ids, "[[5, 6, 7, 8], [9]]"};
  const std::vector<std::vector<testing::Column>> masks = {
      {{"loss_mask", arrow::list(arrow::boolean()), "[[false, false, true, true], [true]]"}},
      {{"assistant_masks", arrow::large_list(arrow::int64()), "[[0, 0, 3, 1], [1]]"}},
      {{"labels", ids, "[[-100, -100, 0, 8], [9]]"}},
      {{"loss_mask", arrow::list(arrow::uint8()), "[[0, 0, 1, 1], [1]]"},
       {"labels", ids, "[[-100, -100, 7, 8], [9]]"}}};
  for (size_t i = 0; i < masks.size(); ++i) {
    SCOPED_TRACE(i);
    auto columns = masks[i];
    columns.push_back(tokens);
    const auto dataset = TokenDataset::open(
        testing::write_shard_folder(folder, "d", {testing::make_record_batch(columns)}), "");
    const auto index = scan_sequences(dataset);
    EXPECT_EQ(index.lengths, (std::vector<uint32_t>{4, 1}));
    EXPECT_EQ(index.first_anchors, (std::vector<uint32_t>{2, SequenceIndex::kNoAnchor}));
    EXPECT_EQ(index.smallest_id, 5);
    EXPECT_EQ(index.largest_id, 9);
  }
}

TEST_F(Index, NamesARowWhoseMaskHasAnotherLength) {
  const auto dataset = TokenDataset::open(
      testing::write_shard_folder(
          folder, "d", {testing::make_token_batch("[[1,2],[1,2,3]]", "[[1,1],[1,1]]")}),
      "");
  testing::expect_error<DataError>(
      [&] { scan_sequences(dataset); }, {"row 1", "3 values of loss_mask", "got 2"});
}

TEST_F(Index, IsKeptBesideTheDatasetAndReadAgain) {
  EXPECT_TRUE(is_scanned());
  keep_index(scan_sequences(open()), open(), folder / "none");
  EXPECT_TRUE(fs::exists(beside));
  EXPECT_FALSE(is_scanned());
}

// A folder that cannot be written, also for root: a folder stands where the file would be.
TEST_F(Index, IsKeptInTheRunFolderWhereTheDatasetCannotBeWritten) {
  fs::create_directories(beside / "x");
  fs::create_directories(folder / "run");
  keep_index(scan_sequences(open()), open(), folder / "run");
  EXPECT_FALSE(is_scanned(folder / "run"));
  EXPECT_TRUE(is_scanned(folder / "other run"));
  // Neither place: a warning, no error.
  EXPECT_NO_THROW(keep_index(scan_sequences(open()), open(), folder / "no such folder"));
}

TEST_F(Index, IsNotBelievedAfterTheDatasetChanged) {
  keep_index(scan_sequences(open()), open(), {});
  auto sequences = some_sequences();
  sequences[1].mask.assign(30, 1);  // the same sizes, another mask
  const std::string index = read_file(beside);
  fs::remove_all(path);
  testing::write_dataset_folder(folder, "dataset", sequences);
  write_file_atomically(beside, index);
  for (const auto& entry : fs::directory_iterator(path))  // even when the clock did not move
    if (entry.path().extension() == ".arrow")
      fs::last_write_time(entry.path(), fs::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_TRUE(is_scanned());
}

TEST_F(Index, IsNotBelievedWhenItIsDamaged) {
  keep_index(scan_sequences(open()), open(), {});
  const std::string whole = read_file(beside);
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string bytes = whole;
    bytes[i] = static_cast<char>(bytes[i] ^ 0x10);
    folder.write("dataset/draftsmith-index.bin", bytes);
    EXPECT_FALSE(read_index(beside, open()).has_value()) << "byte " << i;
  }
  for (const size_t length : {size_t{0}, size_t{1}, size_t{40}, whole.size() - 1}) {
    folder.write("dataset/draftsmith-index.bin", whole.substr(0, length));
    EXPECT_FALSE(read_index(beside, open()).has_value()) << length;
  }
  folder.write("dataset/draftsmith-index.bin", whole);
  EXPECT_TRUE(read_index(beside, open()).has_value());
}

TEST_F(Index, GivesTheSameBatchesAsAScan) {
  DataSettings settings;
  settings.path = path.string();
  const BlockRule rule{4, 199, 7.0};
  auto first = BatchSource::open(settings, 200, folder / "run");
  EXPECT_FALSE(fs::exists(beside));
  first.save_index();
  EXPECT_TRUE(fs::exists(beside));
  auto second = BatchSource::open(settings, 200, folder / "run");
  const auto left = first.read({}, rule);
  const auto right = second.read({}, rule);
  EXPECT_EQ(left.tokens.sequences, right.tokens.sequences);
  EXPECT_TRUE(torch::equal(left.tokens.ids, right.tokens.ids));
}

TEST_F(Index, StillFindsIdsOutsideTheVocabularyWhenItIsReadAgain) {
  keep_index(scan_sequences(open()), open(), {});
  DataSettings settings;
  settings.path = path.string();
  const int64_t largest = scan_sequences(open()).largest_id;
  EXPECT_NO_THROW(BatchSource::open(settings, largest + 1, {}));
  testing::expect_error<DataError>(
      [&] { BatchSource::open(settings, largest, {}); }, {"token", std::to_string(largest), "row"});
}

}  // namespace
}  // namespace draftsmith::data
