// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include <c10/util/Float8_e4m3fn.h>

#include "draftsmith/base/error.h"

#include "tests/model/tiny_checkpoint.h"
#include "tests/support/reference.h"
#include "tests/support/tiny_models.h"

namespace draftsmith::model {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::max_difference;
using testing::TempFolder;
using testing::TinyCheckpoint;

torch::Tensor fixed_ids() {
  return torch::tensor(testing::make_ids(20, 211, 5), torch::kLong).view({2, 10});
}

TargetSettings settings_of(const fs::path& folder) {
  TargetSettings settings;
  settings.path = folder.string();
  settings.dtype = "float32";
  return settings;
}

TEST(SplitTarget, GivesTheSameOnTwoDevicesAsOnOne) {
  for (const char* name : {"targets/qwen3-tiny", "targets/qwen3_5-tiny"}) {
    auto settings = settings_of(testing::fixture(name));
    const auto whole = Target::load(settings);
    settings.devices = {"cpu", "cpu"};
    ::testing::internal::CaptureStderr();
    const auto split = Target::load(settings);
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(log.find("layers from layer 0 on cpu"), std::string::npos) << log;
    const auto wanted = whole.forward(fixed_ids(), {0, 2});
    const auto states = split.forward(fixed_ids(), {0, 2});
    EXPECT_TRUE(states.features.equal(wanted.features));
    EXPECT_TRUE(states.last.equal(wanted.last));
    auto cache = split.make_cache(2, 20);
    split.forward(fixed_ids(), {}, cache);
    split.verify({make_line({1, 2}), make_line({3, 4})}, {}, cache);
    cache.commit({{0}, {0, 1}});
    EXPECT_EQ(cache.lengths(), (std::vector<int64_t>{11, 12}));
  }
}

TEST(SplitTarget, RefusesADeviceThatIsNotThere) {
  auto settings = settings_of(testing::fixture("targets/qwen3-tiny"));
  settings.devices = {"cpu", "tpu"};
  expect_error<DeviceError>([&] { Target::load(settings); }, {"tpu"});
}

TEST(SplitTarget, SpreadsPartsByTheirBytes) {
  EXPECT_EQ(split_by_bytes({4, 4, 4, 4}, 2), (std::vector<size_t>{0, 0, 1, 1}));
  EXPECT_EQ(split_by_bytes({10, 1, 1, 1, 1, 6}, 2), (std::vector<size_t>{0, 1, 1, 1, 1, 1}));
  EXPECT_EQ(split_by_bytes({1, 1, 1}, 1), (std::vector<size_t>{0, 0, 0}));
  EXPECT_EQ(split_by_bytes({0, 8, 8, 8, 0}, 3), (std::vector<size_t>{0, 0, 1, 2, 2}));
}

TEST(Float8Checkpoint, BecomesItsValuesTimesTheFactorsOfTheirBlocks) {
  // Matrices larger than a block in both directions, and not whole blocks.
  TinyCheckpoint checkpoint("targets/qwen3-tiny");
  checkpoint.config["intermediate_size"] = 300;
  auto plain = checkpoint.tensors;
  for (auto& [name, tensor] : plain) {
    if (name.find("mlp.") == std::string::npos) continue;
    const bool is_down = name.find("down") != std::string::npos;
    const auto size = is_down ? std::vector<int64_t>{64, 300} : std::vector<int64_t>{300, 64};
    const auto blocks = is_down ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{3, 1};
    const auto eights =
        testing::random_normal(size, name.size()).to(torch::kFloat).to(c10::kFloat8_e4m3fn);
    const auto factors =
        (testing::random_normal(blocks, 7).abs() * 0.05 + 0.01).to(torch::kFloat);
    tensor = eights.to(torch::kFloat);
    for (int64_t r = 0; r < size[0]; ++r)
      for (int64_t c = 0; c < size[1]; ++c)
        tensor[r][c] *= factors[r / 128][c / 128];
    checkpoint.tensors[name] = eights;
    checkpoint.tensors[name + "_scale_inv"] = factors;
  }
  ::testing::internal::CaptureStderr();
  const auto eight = checkpoint.load();
  EXPECT_EQ(::testing::internal::GetCapturedStderr().find("not used"), std::string::npos);
  const auto states = eight.forward(fixed_ids(), {0});
  checkpoint.tensors = plain;
  EXPECT_TRUE(checkpoint.load().forward(fixed_ids(), {0}).last.equal(states.last));
}

TEST(Float8Checkpoint, NamesFactorsThatAreMissingOrTooFew) {
  TinyCheckpoint checkpoint("targets/qwen3-tiny");
  const std::string name = "model.layers.1.self_attn.k_proj.weight";
  checkpoint.tensors[name] = checkpoint.tensors.at(name).to(c10::kFloat8_e4m3fn);
  expect_error<DataError>([&] { checkpoint.load(); }, {name + "_scale_inv"});
  checkpoint.tensors[name + "_scale_inv"] = torch::ones({2, 1});
  expect_error<DataError>([&] { checkpoint.load(); }, {name + "_scale_inv", "[1, 1]", "[2, 1]"});
}

TEST(Positions, BeyondThoseOfTheModelAreRefused) {
  TinyCheckpoint checkpoint("targets/qwen3_5-tiny");
  checkpoint.config["max_position_embeddings"] = 10;
  const auto target = checkpoint.load();
  EXPECT_NO_THROW(target.forward(fixed_ids(), {}));
  expect_error<ConfigError>(
      [&] { target.forward(torch::zeros({1, 11}, torch::kLong), {}); }, {"at most 10", "11"});
  auto cache = target.make_cache(1, 20);
  target.forward(fixed_ids().narrow(0, 0, 1), {}, cache);
  expect_error<ConfigError>(
      [&] { target.forward(torch::zeros({1, 1}, torch::kLong), {}, cache); }, {"at most 10"});
}

/// A value in bytes of /proc/self/status, for example VmHWM: the peak of resident memory, mapped
/// pages included.
int64_t read_status(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    if (word != key + ":") continue;
    int64_t kilobytes = 0;
    file >> kilobytes;
    return kilobytes * 1024;
  }
  return 0;
}

/// A Qwen3 checkpoint of about 4 GB whose data are holes of the file.
void write_large_checkpoint(const fs::path& folder, const std::string& dtype, int64_t width) {
  TinyCheckpoint tiny("targets/qwen3-tiny");
  auto config = tiny.config;
  config["hidden_size"] = 2048;
  config["intermediate_size"] = 8192;
  config["num_hidden_layers"] = 4 * 7 * 2 / width;
  config["vocab_size"] = 65536;
  config["tie_word_embeddings"] = true;
  config.erase("layer_types");  // as many as the tiny one has
  write_file_atomically(folder / "config.json", config.dump());
  formats::Json header = formats::Json::object();
  int64_t offset = 0;
  for (const WeightSpec& spec : list_target_weights(formats::read_target_config(folder))) {
    const int64_t bytes = c10::multiply_integers(spec.shape) * width;
    header[spec.name] = {
        {"dtype", dtype}, {"shape", spec.shape}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t size = text.size();
  std::ofstream file(folder / "model.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&size), sizeof(size));
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  fs::resize_file(folder / "model.safetensors", sizeof(size) + size + static_cast<size_t>(offset));
}

TEST(SlowLargeCheckpoint, LoadsWithinItsTensorsBytesAndFivePercent) {
  for (const auto& [dtype, width] : {std::pair("F32", 4), std::pair("BF16", 2)}) {
    const TempFolder folder;
    write_large_checkpoint(folder.path(), dtype, width);
    EXPECT_GT(fs::file_size(folder / "model.safetensors"), 3'000'000'000U);
    auto settings = settings_of(folder.path());
    settings.dtype = "bfloat16";
    std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts again from now
    const int64_t before = read_status("VmRSS");
    const auto target = Target::load(settings);
    // Mapped tensors are read by the first forward: count them too.
    target.forward(torch::zeros({1, 4}, torch::kLong), {});
    const int64_t peak = read_status("VmHWM") - before;
    int64_t bytes = 0;
    for (const WeightSpec& spec : list_target_weights(target.config()))
      bytes += count_bytes(spec, torch::kBFloat16);
    EXPECT_LE(static_cast<double>(peak), 1.05 * static_cast<double>(bytes)) << dtype;
    EXPECT_GE(static_cast<double>(peak), 0.5 * static_cast<double>(bytes)) << dtype;
  }
}

}  // namespace
}  // namespace draftsmith::model
