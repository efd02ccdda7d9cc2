// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/checkpoint_list.h"

#include <gtest/gtest.h>

#include "draftsmith/base/error.h"

#include "tests/support/reference.h"
#include "tests/train/saved_state.h"

namespace draftsmith::train {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

struct CheckpointList : ::testing::Test, testing::SavedState {
  std::optional<fs::path> newest() const { return find_newest_checkpoint(folder.path()); }
  void write_all(const std::vector<int64_t>& steps) const {
    for (const int64_t step : steps)
      write(step);
  }
  void tidy(int64_t step, int64_t keep_last) const {
    remove_old_checkpoints(folder.path(), step, keep_last);
  }
};

TEST_F(CheckpointList, OrdersByNumberAndNotByName) {
  write_all({9, 10});
  EXPECT_EQ(newest(), path(10));
  EXPECT_EQ(find_newest_checkpoint(folder.path(), 9), path(9));
  EXPECT_EQ(find_newest_checkpoint(folder.path(), 8), std::nullopt);
}

TEST_F(CheckpointList, IsEmptyInAFolderWithoutAny) {
  EXPECT_FALSE(newest());
  for (const char* name : {"best", "step-x", "step-20a", ".step-30.partial", "step-", "step--4"})
    fs::create_directories(folder / "checkpoints" / name);
  EXPECT_FALSE(newest());
}

TEST_F(CheckpointList, PassesOverDamagedOnesSaysSoAndDeletesNothing) {
  write_all({1, 2, 3, 4});
  testing::flip_bit(path(4) / "optimizer.safetensors");
  fs::resize_file(path(3) / "model.safetensors", 100);
  fs::create_directories(path(5));  // only begun
  const auto before = testing::snapshot(folder.path());
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(newest(), path(2));
  const std::string said = ::testing::internal::GetCapturedStderr();
  for (const char* part :
       {"step-5", "step-4", "step-3", "passed over", "optimizer.safetensors", "100"})
    EXPECT_NE(said.find(part), std::string::npos) << part << " in: " << said;
  EXPECT_TRUE(testing::snapshot(folder.path()) == before);
}

TEST_F(CheckpointList, KeepsTheNewestAndRemovesOlderOnes) {
  write_all({1, 2, 3});
  tidy(3, 2);
  EXPECT_EQ(list(), (Names{"step-2", "step-3"}));
  write(10);
  tidy(10, 2);
  EXPECT_EQ(list(), (Names{"step-10", "step-3"}));
  tidy(10, 5);
  EXPECT_EQ(list(), (Names{"step-10", "step-3"}));
}

TEST_F(CheckpointList, SparesTheBestAndWhatIsNoCheckpoint) {
  write_all({1, 2, 3, 4});
  fs::create_directories(folder / "checkpoints/notes");
  point_best_to(folder.path(), 1);
  tidy(4, 1);
  EXPECT_EQ(list(), (Names{"best", "notes", "step-1", "step-4"}));
  EXPECT_EQ(fs::canonical(folder / "checkpoints/best"), fs::canonical(path(1)));
  point_best_to(folder.path(), 4);
  tidy(4, 1);
  EXPECT_EQ(list(), (Names{"best", "notes", "step-4"}));
}

TEST_F(CheckpointList, LeavesDamagedLaterOnesToTheRunThatReplacesThem) {
  // The run went on from step 2 because 8 and 9 were damaged; it must not lose 2 and 3 to them.
  write_all({2, 3, 8, 9});
  tidy(3, 2);
  EXPECT_EQ(list(), (Names{"step-2", "step-3", "step-8", "step-9"}));
}

TEST_F(CheckpointList, RemovesWhatKilledProcessesLeftOfASave) {
  write_all({2, 3});
  folder.write("checkpoints/.step-1.partial/model.safetensors", "half");
  folder.write("checkpoints/.step-7.partial/model.safetensors", "half");
  folder.write("checkpoints/.notes/one", "kept");
  tidy(3, 2);
  EXPECT_EQ(list(), (Names{".notes", "step-2", "step-3"}));
}

TEST_F(CheckpointList, NeedsRoomForAllThatIsKeptAtOneTime) {
  write(1);
  int64_t bytes = 0;
  for (const char* name : {"model.safetensors", "optimizer.safetensors"})
    bytes += static_cast<int64_t>(fs::file_size(path(1) / name));
  // Three that are kept, the best and the one being written; headers and JSON are small change.
  const int64_t needed = needed_bytes(drafter, optimizer, 3);
  EXPECT_NEAR(
      static_cast<double>(needed), 5.0 * static_cast<double>(bytes),
      0.5 * static_cast<double>(bytes));
  EXPECT_NO_THROW(check_room(folder.path(), needed));
  testing::expect_error<DeviceError>(
      [&] { check_room(folder.path(), int64_t{1} << 60); },
      {"disk", "1099511627776 MiB", "train.keep_last"});
}

}  // namespace
}  // namespace draftsmith::train
