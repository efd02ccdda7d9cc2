// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"

#include "tests/support/reference.h"
#include "tests/support/temp_folder.h"
#include "tests/train/tiny_batches.h"

namespace draftsmith::train {
namespace {

namespace fs = std::filesystem;
using testing::TempFolder;

const model::Target& tiny_target() {
  static const auto target = testing::load_target("targets/qwen3-tiny");
  return target;
}

TrainProgress make_progress(int64_t step) {
  TrainProgress progress;
  progress.step = step;
  progress.cursor = {2, 3};
  progress.tokens = 12345;
  progress.seconds = 1.5;
  progress.settings = {{"train.lr", "0.001"}, {"data.path", "a \"quoted\" path"}};
  return progress;
}

struct Checkpoint : ::testing::Test {
  TempFolder folder;
  model::Drafter drafter = testing::make_tiny_drafter(tiny_target(), "bfloat16");
  AdamW optimizer{drafter.parameters(), {}};

  void write(int64_t step, int64_t keep_last = 100) {
    write_checkpoint(folder.path(), drafter, optimizer, make_progress(step), keep_last);
  }
  std::vector<std::string> list() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder / "checkpoints"))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
};

TEST_F(Checkpoint, GivesBackTheProgressThatWasWritten) {
  write(7);
  const auto progress = read_progress(folder / "checkpoints/step-7");
  EXPECT_EQ(progress.step, 7);
  EXPECT_EQ(progress.cursor.epoch, 2);
  EXPECT_EQ(progress.cursor.batch, 3);
  EXPECT_EQ(progress.tokens, 12345);
  EXPECT_EQ(progress.seconds, 1.5);
  EXPECT_EQ(progress.settings, make_progress(7).settings);
}

TEST_F(Checkpoint, IsADrafterFolder) {
  write(1);
  const auto loaded = model::Drafter::load(folder / "checkpoints/step-1", torch::kBFloat16);
  for (size_t i = 0; i < loaded.parameters().size(); ++i)
    EXPECT_TRUE(loaded.parameters()[i].second.equal(drafter.parameters()[i].second));
}

TEST_F(Checkpoint, KeepsTheNewestAndRemovesOlderOnes) {
  for (const int64_t step : {1, 2, 3})
    write(step, 2);
  EXPECT_EQ(list(), (std::vector<std::string>{"step-2", "step-3"}));
  write(10, 2);
  EXPECT_EQ(list(), (std::vector<std::string>{"step-10", "step-3"}));
}

TEST_F(Checkpoint, OrdersByNumberAndNotByName) {
  write(9);
  write(10);
  EXPECT_EQ(find_newest_checkpoint(folder.path()), folder / "checkpoints/step-10");
}

TEST_F(Checkpoint, SparesAndIgnoresOtherFolders) {
  write(1);
  for (const char* name : {"best", "step-x", "step-20a", ".step-30.partial", "step-"})
    fs::create_directories(folder / "checkpoints" / name);
  EXPECT_EQ(find_newest_checkpoint(folder.path()), folder / "checkpoints/step-1");
  write(2, 1);
  EXPECT_TRUE(fs::exists(folder / "checkpoints/best"));
  EXPECT_FALSE(fs::exists(folder / "checkpoints/step-1"));
}

TEST_F(Checkpoint, ReplacesALeftoverOfABrokenSave) {
  folder.write("checkpoints/.step-1.partial/model.safetensors", "half");
  write(1);
  EXPECT_EQ(list(), (std::vector<std::string>{"step-1"}));
  EXPECT_EQ(read_progress(folder / "checkpoints/step-1").step, 1);
}

TEST_F(Checkpoint, IsAbsentFromAFolderWithoutAny) {
  EXPECT_FALSE(find_newest_checkpoint(folder.path()));
  fs::create_directories(folder / "checkpoints");
  EXPECT_FALSE(find_newest_checkpoint(folder.path()));
}

TEST_F(Checkpoint, RefusesADamagedState) {
  write(1);
  const fs::path state = folder / "checkpoints/step-1/state.json";
  const std::string good = read_file(state);
  for (const std::string& text :
       {good.substr(0, good.size() / 2), std::string("[]"), std::string("{}"),
        std::string("{\"step\": -1}")}) {
    write_file_atomically(state, text);
    testing::expect_error<DataError>([&] { read_progress(state.parent_path()); }, {"state.json"});
  }
  fs::remove(state);
  testing::expect_error<DataError>([&] { read_progress(state.parent_path()); }, {"state.json"});
}

TEST_F(Checkpoint, RefusesDamagedOptimizerTensors) {
  write(1);
  const fs::path file = folder / "checkpoints/step-1/optimizer.safetensors";
  const std::string good = read_file(file);
  write_file_atomically(file, good.substr(0, good.size() - 1));
  testing::expect_error<DataError>(
      [&] { load_optimizer(file.parent_path(), make_progress(1), optimizer); },
      {"optimizer.safetensors"});
}

TEST_F(Checkpoint, LoadsTheWeightsThroughTheirMasters) {
  write(4);
  const auto before = drafter.parameters().front().second.clone();
  drafter.parameters().front().second.fill_(9);
  AdamW other(drafter.parameters(), {});
  load_optimizer(folder / "checkpoints/step-4", make_progress(4), other);
  EXPECT_TRUE(drafter.parameters().front().second.equal(before));
  EXPECT_EQ(other.num_steps(), 4);
}

}  // namespace
}  // namespace draftsmith::train
