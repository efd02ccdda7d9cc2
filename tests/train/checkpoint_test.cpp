// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "draftsmith/base/error.h"
#include "draftsmith/formats/json.h"

#include "tests/support/reference.h"
#include "tests/train/saved_state.h"

namespace draftsmith::train {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;

struct Checkpoint : ::testing::Test, testing::SavedState {
  /// The damage that is found says what and where.
  void expect_damage(const std::vector<std::string>& parts) const {
    const auto damage = find_damage(path(1));
    ASSERT_TRUE(damage);
    for (const std::string& part : parts)
      EXPECT_NE(damage->find(part), std::string::npos) << "'" << part << "' in: " << *damage;
  }
};

TEST_F(Checkpoint, GivesBackAllThatWasWritten) {
  write(7);
  const auto progress = read_progress(path(7));
  EXPECT_EQ(progress.step, 7);
  EXPECT_EQ(progress.cursor.epoch, 2);
  EXPECT_EQ(progress.cursor.batch, 3);
  EXPECT_EQ(progress.batches, 28);
  EXPECT_EQ(progress.tokens, 12345);
  EXPECT_EQ(progress.seconds, 1.5);
  EXPECT_EQ(progress.best.step, -1);
  EXPECT_EQ(progress.best.acceptance, 1.25);
  const auto stamp = read_stamp(path(7));
  EXPECT_EQ(stamp.settings, state(7).stamp.settings);
  EXPECT_EQ(stamp.dataset, "6 sequences, 01234567");
  EXPECT_EQ(stamp.target, "9 bytes of weights, 89abcdef");
  EXPECT_EQ(stamp.commit, "0123abc");
  EXPECT_TRUE(stamp.is_changed);
  EXPECT_EQ(stamp.chunk_rows, 321);
  EXPECT_TRUE(stamp.recomputes_layers);
  const auto schedule = read_schedule(path(7));
  EXPECT_EQ(schedule.kind, "wsd");
  EXPECT_EQ(schedule.peak, 0.5);
  EXPECT_EQ(schedule.warmup_steps, 3);
  EXPECT_EQ(schedule.total_steps, 40);
}

TEST_F(Checkpoint, IsADrafterFolder) {
  write(1);
  const auto loaded = model::Drafter::load(path(1), torch::kBFloat16);
  for (size_t i = 0; i < loaded.parameters().size(); ++i)
    EXPECT_TRUE(loaded.parameters()[i].second.equal(drafter.parameters()[i].second));
}

TEST_F(Checkpoint, LoadsTheWeightsThroughTheirMasters) {
  write(4);
  const auto before = drafter.parameters().front().second.clone();
  drafter.parameters().front().second.fill_(9);
  AdamW other(drafter.parameters(), {});
  load_optimizer(path(4), other);
  EXPECT_TRUE(drafter.parameters().front().second.equal(before));
  EXPECT_EQ(other.num_steps(), 4);
}

TEST_F(Checkpoint, ReplacesWhatABrokenSaveLeft) {
  folder.write("checkpoints/.step-1.partial/model.safetensors", "half");
  folder.write("checkpoints/step-1/model.safetensors", "half");
  write(1);
  EXPECT_EQ(list(), (std::vector<std::string>{"step-1"}));
  EXPECT_EQ(find_damage(path(1)), std::nullopt);
}

TEST_F(Checkpoint, NamesEveryFileInItsManifest) {
  write(1);
  const auto files = formats::read_json_file(path(1) / "manifest.json").at("files");
  for (const auto& entry : fs::directory_iterator(path(1))) {
    const std::string name = entry.path().filename().string();
    if (name == "manifest.json") continue;
    ASSERT_TRUE(files.contains(name)) << name;
    EXPECT_EQ(files.at(name).at("bytes"), entry.file_size());
  }
  EXPECT_EQ(files.size(), 4U);
}

TEST_F(Checkpoint, ShowsABitThatChangedInAnyFile) {
  for (const char* name :
       {"config.json", "model.safetensors", "optimizer.safetensors", "state.json"}) {
    write(1);
    EXPECT_EQ(find_damage(path(1)), std::nullopt);
    testing::flip_bit(path(1) / name);
    expect_damage({name, "checksum"});
  }
}

TEST_F(Checkpoint, ShowsAFileThatIsShortOrMissing) {
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    write(1);
    fs::resize_file(path(1) / name, fs::file_size(path(1) / name) - 1);
    expect_damage({name, "bytes"});
    fs::remove(path(1) / name);
    expect_damage({name, "No such file"});
  }
}

TEST_F(Checkpoint, IsIncompleteWithoutAGoodManifest) {
  for (const char* text :
       {"", "[]", "{}", "{\"files\": {}}", "{\"files\": {\"../state.json\": {}}}",
        "{\"files\": {\"state.json\": {\"bytes\": -1}}}"}) {
    write(1);
    write_file_atomically(path(1) / "manifest.json", text);
    expect_damage({"manifest.json"});
  }
  write_file_atomically(
      path(1) / "manifest.json", "{\"files\": {\"../a\": {\"bytes\": 1, \"crc32c\": \"\"}}}");
  expect_damage({"'../a'"});
  fs::remove(path(1) / "manifest.json");
  expect_damage({"manifest.json"});
}

TEST_F(Checkpoint, RefusesAStateThatMakesNoSense) {
  write(1);
  const fs::path file = path(1) / "state.json";
  const std::string good = read_file(file);
  for (const std::string& text :
       {good.substr(0, good.size() / 2), std::string("[]"), std::string("{}"),
        std::string("{\"step\": -1}")}) {
    write_file_atomically(file, text);
    expect_error<DataError>([&] { read_progress(path(1)); }, {"state.json"});
    expect_error<DataError>([&] { read_stamp(path(1)); }, {"state.json"});
    expect_error<DataError>([&] { read_schedule(path(1)); }, {"state.json"});
  }
}

TEST_F(Checkpoint, RefusesCountsThatNoRunReaches) {
  write(1);
  const fs::path file = path(1) / "state.json";
  const auto good = formats::read_json_file(file);
  const auto refuse = [&](const char* owner, const char* key, const auto& read) {
    auto json = good;
    (owner == nullptr ? json : json[owner])[key] = (int64_t{1} << 53) + 1;
    write_file_atomically(file, json.dump());
    expect_error<DataError>([&] { read(path(1)); }, {key, "state.json"});
  };
  for (const char* key : {"step", "batches", "tokens"})
    refuse(nullptr, key, read_progress);
  refuse("cursor", "epoch", read_progress);
  refuse("cursor", "batch", read_progress);
  refuse("best", "step", read_progress);
  refuse(nullptr, "ranks", read_stamp);
  refuse("plan", "chunk_rows", read_stamp);
  refuse("schedule", "warmup_steps", read_schedule);
  refuse("schedule", "total_steps", read_schedule);
}

TEST_F(Checkpoint, LeavesTheFormerOneAloneWhenTheDiskIsFull) {
  write(1);
  const auto before = testing::snapshot(folder.path());
  // A limit on the size of files stands for a full disk: the write is refused half-way.
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small{10000, old.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  expect_error<DeviceError>([&] { write(2); }, {"step-2", "model.safetensors"});
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(testing::snapshot(folder.path()) == before);
}

}  // namespace
}  // namespace draftsmith::train
