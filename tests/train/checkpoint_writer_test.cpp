// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/checkpoint_writer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "draftsmith/base/error.h"
#include "draftsmith/train/checkpoint_list.h"

#include "tests/support/reference.h"
#include "tests/train/saved_state.h"

namespace draftsmith::train {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

struct Writer : ::testing::Test, testing::SavedState {
  /// Lets every save fail: a file stands where the folder should be.
  void block() const { folder.write("checkpoints", "in the way"); }
};

TEST_F(Writer, SavesTheStateOfTheMomentWhileTrainingChangesIt) {
  const auto before = drafter.parameters().front().second.clone();
  const at::NoGradGuard no_grad;
  CheckpointWriter writer(folder.path(), 2);
  writer.save(state(1));
  for (const auto& [name, tensor] : drafter.parameters())
    tensor.fill_(7);
  for (const auto& [name, tensor] : optimizer.state())
    tensor.fill_(7);
  writer.wait();
  const auto saved = model::Drafter::load(path(1), torch::kBFloat16);
  EXPECT_TRUE(saved.parameters().front().second.equal(before));
  AdamW other(drafter.parameters(), {});
  load_optimizer(path(1), other);
  EXPECT_TRUE(drafter.parameters().front().second.equal(before));
}

TEST_F(Writer, WritesOneAfterTheOtherAndKeepsTheLast) {
  {
    CheckpointWriter writer(folder.path(), 2);
    for (int64_t step = 1; step <= 5; ++step)
      writer.save(state(step));
  }  // waits
  EXPECT_EQ(list(), (Names{"step-4", "step-5"}));
  EXPECT_EQ(find_newest_checkpoint(folder.path()), path(5));
}

TEST_F(Writer, PointsToTheBestAndSparesIt) {
  {
    CheckpointWriter writer(folder.path(), 1);
    writer.save(state(1, -1));
    writer.save(state(2, 2));
    writer.save(state(3, 2));
    writer.save(state(4, 2));
  }
  EXPECT_EQ(list(), (Names{"best", "step-2", "step-4"}));
  EXPECT_EQ(fs::canonical(folder / "checkpoints/best"), fs::canonical(path(2)));
}

TEST_F(Writer, HandsTheErrorOfItsThreadToWhoWaits) {
  block();
  CheckpointWriter writer(folder.path(), 2);
  writer.save(state(1));
  testing::expect_error<DeviceError>([&] { writer.wait(); }, {"checkpoints"});
  EXPECT_NO_THROW(writer.wait());  // it is told once
  writer.save(state(2));
  testing::expect_error<DeviceError>([&] { writer.save(state(3)); }, {"checkpoints"});
}

TEST_F(Writer, DoesNotMakeAFolderAnewThatWasRemoved) {
  CheckpointWriter writer(folder.path(), 2);
  writer.save(state(1));
  writer.wait();
  fs::remove_all(folder.path());
  writer.save(state(2));
  testing::expect_error<DeviceError>([&] { writer.wait(); }, {folder.path().string(), "removed"});
  EXPECT_FALSE(fs::exists(folder.path()));
}

TEST_F(Writer, TellsOfAnErrorAsSoonAsItIsAsked) {
  block();
  CheckpointWriter writer(folder.path(), 2);
  EXPECT_NO_THROW(writer.check());
  writer.save(state(1));
  const auto check_for_a_minute = [&] {
    for (int i = 0; i < 60'000; ++i) {
      writer.check();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  testing::expect_error<DeviceError>(check_for_a_minute, {"checkpoints"});
}

TEST_F(Writer, LogsAnErrorThatNobodyAskedFor) {
  block();
  ::testing::internal::CaptureStderr();
  {
    CheckpointWriter writer(folder.path(), 2);
    writer.save(state(1));
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("warning: file: expected to write it"), std::string::npos) << said;
}

}  // namespace
}  // namespace draftsmith::train
