// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/app/program.h"

namespace draftsmith::app {
namespace {

namespace fs = std::filesystem;
using testing::operator+;
using testing::expect_refused;
using testing::make_sequence;
using testing::TempFolder;

struct BadData : ::testing::Test {
  TempFolder folder;
  fs::path target = testing::fixture("targets/qwen3-tiny");

  void expect_train_refused(
      const std::vector<data::TokenSequence>& sequences,
      const std::vector<std::string>& parts) {
    const auto dataset = testing::write_dataset_folder(folder, "dataset", sequences);
    expect_refused(folder, testing::train_arguments(target, dataset, folder / "run"), 3, parts);
    EXPECT_FALSE(fs::exists(folder / "run"));
  }

  void expect_prompts_refused(
      const std::string& text,
      const std::vector<std::string>& parts,
      bool tries_eval = false) {
    const auto prompts = folder.write("prompts.jsonl", text).string();
    const std::string path = "--target.path=" + target.string();
    expect_refused(
        folder,
        {"generate", path, "--generate.prompts=" + prompts,
         "--generate.out=" + (folder / "out").string()},
        3, parts);
    if (!tries_eval) return;
    expect_refused(
        folder,
        {"eval", path, "--eval.prompts=" + prompts,
         "--drafter.init=" + testing::fixture("drafter/full").string()},
        3, parts);
  }
};

TEST_F(BadData, NamesATokenOutsideTheVocabulary) {
  auto bad = make_sequence(12, 4, 2);
  bad.ids[7] = 211;
  expect_train_refused({make_sequence(12, 4, 1), bad}, {"token 7", "211", "row 1"});
  bad.ids[7] = -1;
  expect_train_refused({make_sequence(12, 4, 1), bad}, {"token 7", "-1", "row 1"});
}

TEST_F(BadData, NamesARowWhoseMaskHasAnotherLength) {
  auto bad = make_sequence(10, 4, 2);
  bad.mask.pop_back();
  expect_train_refused({make_sequence(12, 4, 1), bad}, {"row 1", "10", "9"});
}

TEST_F(BadData, RefusesAnEmptyDataset) { expect_train_refused({}, {"dataset", "none"}); }

TEST_F(BadData, RefusesADatasetWithNothingSupervised) {
  expect_train_refused(
      {make_sequence(12, 12, 1), make_sequence(12, 11, 2)},
      {"dataset", "two supervised tokens", "2 without"});
}

TEST_F(BadData, RefusesADatasetWhoseSequencesAreAllTooLong) {
  const auto dataset = testing::write_tiny_dataset(folder);
  expect_refused(
      folder,
      testing::train_arguments(target, dataset, folder / "run") +
          testing::Arguments{"--data.tokens_per_batch=8"},
      3, {"6 too long", "data.tokens_per_batch"});
}

TEST_F(BadData, RefusesAMissingFolderOrShard) {
  expect_refused(
      folder, testing::train_arguments(target, folder / "nowhere", folder / "run"), 3, {"nowhere"});
  const auto dataset = testing::write_tiny_dataset(folder);
  for (const auto& entry : fs::directory_iterator(dataset))
    if (entry.path().extension() == ".arrow") fs::remove(entry.path());
  expect_refused(folder, testing::train_arguments(target, dataset, folder / "run"), 3, {".arrow"});
}

TEST_F(BadData, NamesTheLineOfAPromptOutsideTheVocabulary) {
  expect_prompts_refused(
      "{\"input_ids\": [1, 2]}\n{\"input_ids\": [3, 211]}\n", {"token 1", "211", "line 2"},
      /*tries_eval=*/true);
}

TEST_F(BadData, NamesTheLineOfAPromptThatIsNone) {
  expect_prompts_refused("{\"input_ids\": [1]}\n{\"input_ids\": []}\n", {"input_ids", "line 2"});
  expect_prompts_refused("{\"input_ids\": [1}\n", {"line 1"});
}

TEST_F(BadData, RefusesAMissingPromptFile) {
  expect_refused(
      folder,
      {"generate", "--target.path=" + target.string(),
       "--generate.prompts=" + (folder / "none.jsonl").string(),
       "--generate.out=" + (folder / "out").string()},
      3, {"none.jsonl"});
}

}  // namespace
}  // namespace draftsmith::app
