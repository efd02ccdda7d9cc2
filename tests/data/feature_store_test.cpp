// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/feature_store.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "draftsmith/base/error.h"
#include "draftsmith/data/feature_writer.h"

#include "tests/support/golden.h"
#include "tests/support/reference.h"
#include "tests/support/temp_folder.h"

namespace draftsmith::data {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::random_normal;
using testing::TempFolder;

constexpr int64_t kWidth = 8;   // D
constexpr int64_t kParts = 3;   // two layers and the last state

FeatureHeader make_header(const std::string& format = "bf16") {
  return {format, {1, 4}, kWidth, "target-a", 0};
}

torch::Tensor make_states(int64_t sequence, int64_t length) {
  return random_normal({length, kParts * kWidth}, static_cast<uint64_t>(sequence))
      .to(torch::kBFloat16);
}

/// Sequences 0 (5 tokens), 3 (2) and 7 (9), in two shards.
fs::path write_store(const TempFolder& folder, const std::string& format = "bf16") {
  write_feature_header(folder.path(), make_header(format));
  FeatureWriter writer(folder.path(), make_header(format), 0, /*shard_bytes=*/1);
  writer.add({{0, make_states(0, 5)}, {3, make_states(3, 2)}});
  writer.add({{7, make_states(7, 9)}});
  writer.finish();
  return folder.path();
}

/// Rows of 7 and 0, as a batch of training holds them.
TokenBatch make_batch() {
  TokenBatch batch;
  batch.ids = torch::zeros({2, 9}, torch::kLong);
  batch.lengths = {9, 5};
  batch.sequences = {7, 0};
  batch.parts = {{0, 0, 9, 7, 0}, {1, 0, 5, 0, 0}};
  return batch;
}

TEST(FeatureStore, GivesBackWhatWasWritten) {
  const TempFolder folder;
  const FeatureStore store(write_store(folder));
  EXPECT_EQ(store.num_shards(), 2);
  EXPECT_TRUE(store.has(3));
  EXPECT_FALSE(store.has(1));
  const auto states = store.read(make_batch());
  EXPECT_TRUE(states.features[0].equal(make_states(7, 9).narrow(1, 0, 2 * kWidth)));
  EXPECT_TRUE(states.last[0].equal(make_states(7, 9).narrow(1, 2 * kWidth, kWidth)));
  EXPECT_TRUE(states.features[1].narrow(0, 0, 5).equal(make_states(0, 5).narrow(1, 0, 2 * kWidth)));
  EXPECT_EQ(states.features[1].narrow(0, 5, 4).abs().sum().item<float>(), 0);
}

TEST(FeatureStore, KeepsTheLargestMagnitudeOfEveryPartInNarrowFormats) {
  const auto states = make_states(1, 40) * torch::logspace(-3, 3, 40).unsqueeze(1);
  for (const auto& [format, bound] : {std::pair("fp8", std::exp2(-4)), std::pair("int8", 1 / 254.0)}) {
    const auto stored = pack_states(states, kParts, format);
    EXPECT_EQ(stored.values.element_size(), 1);
    const auto parts = states.to(torch::kDouble).unflatten(-1, {kParts, -1});
    const auto error =
        (unpack_states(stored, kParts).to(torch::kDouble).unflatten(-1, {kParts, -1}) - parts).abs();
    const auto largest = parts.abs().amax(-1, true);
    // Half a step of the format, and the rounding to bfloat16 of the result.
    EXPECT_LE((error / largest).max().item<double>(), bound + std::exp2(-8)) << format;
  }
  const auto zeros = pack_states(torch::zeros({2, kParts * kWidth}), kParts, "fp8");
  EXPECT_EQ(unpack_states(zeros, kParts).abs().sum().item<float>(), 0);
}

TEST(FeatureStore, ReadsNarrowFormats) {
  for (const char* format : {"fp8", "int8"}) {
    const TempFolder folder;
    const FeatureStore store(write_store(folder, format));
    const auto states = store.read(make_batch());
    const auto wanted = unpack_states(pack_states(make_states(7, 9), kParts, format), kParts);
    EXPECT_TRUE(states.features[0].equal(wanted.narrow(1, 0, 2 * kWidth))) << format;
    EXPECT_EQ(
        fs::file_size(feature_shard(folder.path(), 1)) > 9 * kParts * (kWidth + 4U), true);
  }
  EXPECT_EQ(make_header().bytes_per_token(), 48);
  EXPECT_EQ(make_header("fp8").bytes_per_token(), 36);
}

TEST(FeatureStore, NamesADamagedShardAndNeverUsesIt) {
  const TempFolder folder;
  write_store(folder);
  const auto shard = feature_shard(folder.path(), 1);
  {
    std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-10, std::ios::end);
    file.put('\x55');
  }
  const FeatureStore store(folder.path());
  for (int i = 0; i < 2; ++i)
    expect_error<DataError>(
        [&] { store.read(make_batch()); }, {"sequence 7", "checksum", "features-00001"});
  fs::resize_file(shard, fs::file_size(shard) - 1);
  expect_error<DataError>([&] { FeatureStore{folder.path()}; }, {"features-00001"});
  fs::remove(shard);
  expect_error<DataError>([&] { FeatureStore{folder.path()}; }, {"features-00001"});
}

TEST(FeatureStore, RefusesWhatIsNotComplete) {
  const TempFolder folder;
  write_store(folder);
  auto header = make_header();
  write_feature_header(folder.path(), header);
  expect_error<DataError>([&] { FeatureStore{folder.path()}; }, {"finished"});
  EXPECT_EQ(FeatureStore(folder.path(), /*is_partial=*/true).num_shards(), 2);
}

TEST(FeatureStore, RefusesFeaturesOfAnotherTargetOrOfOtherLayers) {
  const TempFolder folder;
  const FeatureStore store(write_store(folder));
  EXPECT_NO_THROW(store.check_origin("target-a", {1, 4}));
  expect_error<DataError>([&] { store.check_origin("target-b", {1, 4}); }, {"target-b", "target-a"});
  expect_error<DataError>([&] { store.check_origin("target-a", {1, 3}); }, {"[1, 3]", "[1, 4]"});
  expect_error<DataError>([&] { store.check_origin("target-a", {4, 1}); }, {"layers"});
}

TEST(FeatureStore, RefusesScalesThatAreNotFloat32) {
  const TempFolder folder;
  auto header = make_header("fp8");
  header.num_shards = 1;
  write_feature_header(folder.path(), header);
  for (const auto dtype : {c10::kFloat8_e4m3fn, torch::kLong, torch::kDouble}) {
    auto stored = pack_states(make_states(0, 5), kParts, "fp8");
    stored.scales = stored.scales.to(dtype);
    formats::write_safetensors(
        feature_shard(folder.path(), 0), {{"0.states", stored.values}, {"0.scales", stored.scales}},
        {{"0", checksum_states(stored)}});
    auto batch = make_batch();
    batch.parts = {{0, 0, 5, 0, 0}};
    expect_error<DataError>(
        [&] { FeatureStore(folder.path()).read(batch); }, {"0.scales", "Float", "features-00000"});
  }
}

TEST(FeatureStore, LooksForRecordsBeforeItTakesMemoryForThem) {
  const TempFolder folder;
  auto header = make_header();
  header.hidden_size = int64_t{1} << 20;
  header.layers.resize(1024);
  header.num_shards = 1;
  write_feature_header(folder.path(), header);
  formats::write_safetensors(feature_shard(folder.path(), 0), {});
  auto batch = make_batch();
  batch.ids = torch::zeros({1024, 8192}, torch::kLong);
  expect_error<DataError>([&] { FeatureStore(folder.path()).read(batch); }, {"sequence 7", "none"});
}

TEST(FeatureStore, NamesASequenceThatItDoesNotHaveInFull) {
  const TempFolder folder;
  const FeatureStore store(write_store(folder));
  auto batch = make_batch();
  batch.parts = {{0, 0, 1, 1, 0}};
  expect_error<DataError>([&] { store.read(batch); }, {"sequence 1"});
  batch.parts = {{0, 0, 9, 0, 0}};
  expect_error<DataError>([&] { store.read(batch); }, {"sequence 0", "9 tokens", "got 5"});
}

}  // namespace
}  // namespace draftsmith::data
