// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/dataset_writer.h"

#include <gtest/gtest.h>

#include "draftsmith/base/error.h"
#include "draftsmith/formats/json.h"

#include "tests/base/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_models.h"

namespace draftsmith::data {
namespace {

using testing::expect_error;
using testing::fixture;
using testing::make_sequence;
using testing::TempFolder;
using testing::write_dataset_folder;

TEST(DatasetWriter, WritesWhatTokenDatasetReads) {
  const TempFolder folder;
  std::vector<TokenSequence> sequences;
  for (int64_t i = 0; i < 2500; ++i)  // more than one record batch
    sequences.push_back(make_sequence(i % 7, i % 3, static_cast<uint64_t>(i), INT32_MAX));
  const auto path = write_dataset_folder(folder, "d", sequences);
  const auto dataset = TokenDataset::open(path, "");
  ASSERT_EQ(dataset.num_sequences(), 2500);
  for (int64_t i = 0; i < 2500; ++i) {
    const auto sequence = dataset.sequence(i);
    ASSERT_EQ(sequence.ids, sequences[static_cast<size_t>(i)].ids) << i;
    ASSERT_EQ(sequence.mask, sequences[static_cast<size_t>(i)].mask) << i;
  }
}

TEST(DatasetWriter, WritesTheFilesOfSaveToDisk) {
  const TempFolder folder;
  const auto path = write_dataset_folder(folder, "d", {make_sequence(4, 1, 1)});
  const auto state = formats::read_json_file(path / "state.json");
  const auto wanted = formats::read_json_file(fixture("arrow/selected/state.json"));
  for (const auto& [key, value] : wanted.items()) {
    if (key == "_fingerprint") continue;
    EXPECT_EQ(state.at(key), value) << key;
  }
  EXPECT_TRUE(state.at("_fingerprint").is_string());
  const auto info = formats::read_json_file(path / "dataset_info.json");
  const auto info_wanted = formats::read_json_file(fixture("arrow/selected/dataset_info.json"));
  EXPECT_EQ(info.at("features").at("input_ids"), info_wanted.at("features").at("input_ids"));
  EXPECT_EQ(info.at("features").at("loss_mask").at("_type"), "List");
}

TEST(DatasetWriter, ReplacesAFolderAndLeavesNothingBesideIt) {
  const TempFolder folder;
  write_dataset_folder(folder, "d", {make_sequence(4, 1, 1), make_sequence(5, 1, 1)});
  const auto path = write_dataset_folder(folder, "d", {make_sequence(3, 1, 2)});
  EXPECT_EQ(TokenDataset::open(path, "").num_sequences(), 1);
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    EXPECT_EQ(entry.path(), path);
}

TEST(DatasetWriter, SaysWhereItCannotWrite) {
  const TempFolder folder;
  folder.write("file", "x");
  expect_error<DeviceError>(
      [&] { write_dataset(folder / "file/d", {make_sequence(3, 1, 2)}); }, {"file"});
}

}  // namespace
}  // namespace draftsmith::data
