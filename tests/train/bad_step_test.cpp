// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/bad_step.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "draftsmith/base/error.h"
#include "draftsmith/train/checkpoint_list.h"

#include "tests/support/reference.h"
#include "tests/train/tiny_run.h"

namespace draftsmith::train {
namespace {

namespace fs = std::filesystem;
using testing::make_trainer;
using testing::RunOptions;
using testing::TempFolder;

constexpr int64_t kBadToken = 210;  // the others are below 200

/// Ten sequences of which the fifth holds the bad token.
fs::path write_sequences(const TempFolder& folder) {
  std::vector<data::TokenSequence> sequences;
  for (uint64_t i = 0; i < 10; ++i)
    sequences.push_back(testing::make_sequence(12, 4, i));
  sequences[4].ids[2] = kBadToken;
  return testing::write_dataset_folder(folder, "dataset", sequences);
}

std::vector<fs::path> list_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

TEST(BadStep, IsNotAppliedAndTheRunGoesOn) {
  const TempFolder folder;
  model::TargetSettings settings;
  settings.path = testing::write_broken_target(folder, kBadToken).string();
  settings.dtype = "float32";
  const auto target = model::Target::load(settings);
  const RunOptions options{.out = (folder / "run").string(), .epochs = 2};
  const auto trainer = make_trainer(target, write_sequences(folder), options);
  trainer->run();

  // Two epochs are ten batches, of which one in each cannot be used; the ten steps are made all
  // the same, from the third epoch.
  EXPECT_EQ(trainer->progress().step, 10);
  for (const auto& [name, tensor] : trainer->drafter().parameters())
    EXPECT_TRUE(tensor.detach().isfinite().all().item<bool>()) << name;
  const auto files = list_files(folder / "run/bad_batches");
  ASSERT_GE(files.size(), 2U);
  EXPECT_EQ(trainer->progress().batches, 10 + static_cast<int64_t>(files.size()));
  for (const fs::path& file : files) {
    const auto json = formats::read_json_file(file);
    EXPECT_EQ(json.at("seed"), 1);
    EXPECT_EQ(json.at("loss"), "nan");
    const auto replay = read_bad_step(file);
    EXPECT_EQ(replay.run_folder, folder / "run");
    EXPECT_EQ(replay.weights_step + 1, json.at("step"));
    ASSERT_EQ(replay.sequences.size(), 1U);
    const auto found = std::find(replay.sequences[0].begin(), replay.sequences[0].end(), 4);
    ASSERT_NE(found, replay.sequences[0].end());
    const auto row = static_cast<size_t>(found - replay.sequences[0].begin());
    EXPECT_EQ(json.at("batches")[0].at("ids")[row][2], kBadToken);
    EXPECT_EQ(json.at("batches")[0].at("ids")[row].size(), 12U);
    // The weights that it failed with were saved.
    EXPECT_TRUE(fs::exists(checkpoint_path(folder / "run", replay.weights_step)));
  }
}

TEST(BadStep, EndsTheRunAfterTenInARow) {
  const TempFolder folder;
  const RunOptions options{.out = (folder / "run").string()};
  const auto target = testing::load_target("targets/qwen3-tiny");
  const auto trainer = make_trainer(target, write_sequences(folder), options);
  const at::NoGradGuard no_grad;
  auto weight = trainer->drafter().parameters().front().second;
  weight.fill_(std::numeric_limits<float>::quiet_NaN());
  testing::expect_error<DivergenceError>([&] { trainer->run(); }, {"10 steps in a row", "finite"});
  EXPECT_EQ(list_files(folder / "run/bad_batches").size(), 10U);
  EXPECT_EQ(find_newest_checkpoint(folder / "run"), std::nullopt);  // NaN is not worth saving
}

TEST(BadStep, RefusesAFileThatIsNone) {
  const TempFolder folder;
  for (const char* text :
       {"", "{}", "{\"step\": 1}", "{\"step\": 1, \"batches\": []}",
        "{\"step\": 0, \"batches\": [1]}", "{\"step\": 1, \"batches\": [1]}",
        "{\"step\": 9223372036854775807, \"batches\": [{\"epoch\": 0, \"batch\": 0, \"sequences\": "
        "[]}]}",
        "{\"step\": 1, \"batches\": [{\"epoch\": 9223372036854775807, \"batch\": 0, \"sequences\": "
        "[]}]}"}) {
    const auto file = folder.write("bad_batches/file.json", text);
    testing::expect_error<DataError>([&] { read_bad_step(file); }, {"file.json"});
  }
}

}  // namespace
}  // namespace draftsmith::train
