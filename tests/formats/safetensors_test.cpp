// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/formats/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include <torch/types.h>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"
#include "draftsmith/formats/json.h"

#include "tests/base/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"

namespace draftsmith::formats {
namespace {

using testing::expect_error;
using testing::TempFolder;
using Names = std::vector<std::string>;

torch::Tensor count_up(at::IntArrayRef shape, torch::ScalarType dtype) {
  int64_t count = 1;
  for (const int64_t size : shape)
    count *= size;
  return torch::arange(count, torch::kLong).reshape(shape).to(dtype);
}

void expect_same(const torch::Tensor& left, const torch::Tensor& right) {
  EXPECT_EQ(left.scalar_type(), right.scalar_type());
  EXPECT_EQ(left.sizes(), right.sizes());
  EXPECT_TRUE(torch::equal(left, right));
}

/// A folder with two shards and their index.
void write_shards(const TempFolder& folder, const Json& weight_map) {
  write_safetensors(folder / "one.safetensors", {{"a", count_up({2}, torch::kFloat)}});
  write_safetensors(folder / "two.safetensors", {{"b", count_up({3}, torch::kFloat)}});
  folder.write("model.safetensors.index.json", Json{{"weight_map", weight_map}}.dump());
}

TEST(Safetensors, RoundTripsEveryDtype) {
  const TempFolder folder;
  const NamedTensors tensors = {
      {"bf16", count_up({3, 2}, torch::kBFloat16)}, {"f16", count_up({3, 2}, torch::kHalf)},
      {"f32", count_up({3, 2}, torch::kFloat)},     {"f64", count_up({3, 2}, torch::kDouble)},
      {"i64", count_up({3, 2}, torch::kLong)},      {"i32", count_up({3, 2}, torch::kInt)},
      {"u8", count_up({3, 2}, torch::kByte)},       {"bool", count_up({3, 2}, torch::kBool)}};
  write_safetensors(folder / "all.safetensors", tensors);
  const auto reader = SafetensorsReader::open_file(folder / "all.safetensors");
  EXPECT_EQ(reader.names(), (Names{"bf16", "bool", "f16", "f32", "f64", "i32", "i64", "u8"}));
  for (const auto& [name, tensor] : tensors) {
    SCOPED_TRACE(name);
    expect_same(reader.tensor(name), tensor);
  }
}

TEST(Safetensors, RoundTripsScalarsEmptyTensorsAndStrides) {
  const TempFolder folder;
  const NamedTensors tensors = {
      {"scalar", torch::tensor(2.5F)},
      {"empty", torch::empty({0, 4}, torch::kLong)},
      {"transposed", count_up({3, 2}, torch::kFloat).t()},
      {"expanded", torch::tensor({1.0F, 2.0F}).expand({3, 2})},
      {"sliced", count_up({6}, torch::kInt).slice(0, 1, 6, 2)}};
  write_safetensors(folder / "odd.safetensors", tensors);
  const auto reader = SafetensorsReader::open_file(folder / "odd.safetensors");
  for (const auto& [name, tensor] : tensors) {
    SCOPED_TRACE(name);
    expect_same(reader.tensor(name), tensor);
  }
}

TEST(Safetensors, KeepsTheBitsOfSpecialNumbers) {
  const TempFolder folder;
  const auto bits = torch::tensor({0x7fc00001, 0x7f800000, INT32_MIN, 1}, torch::kInt);
  write_safetensors(folder / "bits.safetensors", {{"x", bits.view(torch::kFloat)}});
  const auto reader = SafetensorsReader::open_file(folder / "bits.safetensors");
  EXPECT_TRUE(torch::equal(reader.tensor("x").view(torch::kInt), bits));
}

TEST(Safetensors, ReadsDataThatIsNotAlignedForItsDtype) {
  const TempFolder folder;
  const auto wide = count_up({4}, torch::kDouble);
  write_safetensors(
      folder / "odd.safetensors", {{"bytes", count_up({3}, torch::kByte)}, {"wide", wide}});
  const auto reader = SafetensorsReader::open_file(folder / "odd.safetensors");
  const auto tensor = reader.tensor("wide");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % sizeof(double), 0U);
  expect_same(tensor, wide);
}

TEST(Safetensors, GivesViewsOfTheFileThatOutliveTheReader) {
  const TempFolder folder;
  write_safetensors(folder / "x.safetensors", {{"x", count_up({100}, torch::kFloat)}});
  torch::Tensor tensor;
  {
    const auto reader = SafetensorsReader::open_file(folder / "x.safetensors");
    tensor = reader.tensor("x");
    EXPECT_EQ(reader.tensor("x").data_ptr(), tensor.data_ptr()) << "a copy was made";
  }
  std::filesystem::remove(folder / "x.safetensors");
  expect_same(tensor, count_up({100}, torch::kFloat));
}

TEST(Safetensors, WritesTheFormatThatOtherReadersExpect) {
  const TempFolder folder;
  write_safetensors(
      folder / "x.safetensors",
      {{"b", count_up({2, 3}, torch::kBFloat16)}, {"a", count_up({1}, torch::kLong)}});
  const std::string bytes = read_file(folder / "x.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  ASSERT_EQ(bytes.size(), sizeof(length) + length + 12 + 8);
  EXPECT_EQ(length % 8, 0U) << "tensor data should be aligned";
  EXPECT_EQ(bytes[8], '{');
  const Json header = parse_json(bytes.substr(8, length), "header");
  EXPECT_EQ(header.at("__metadata__"), (Json{{"format", "pt"}}));
  EXPECT_EQ(
      header.at("b"), (Json{{"dtype", "BF16"}, {"shape", {2, 3}}, {"data_offsets", {0, 12}}}));
  EXPECT_EQ(header.at("a"), (Json{{"dtype", "I64"}, {"shape", {1}}, {"data_offsets", {12, 20}}}));
}

TEST(Safetensors, ReplacesAFileWithoutLeavingParts) {
  const TempFolder folder;
  for (const int64_t size : {5, 2})
    write_safetensors(folder / "x.safetensors", {{"x", count_up({size}, torch::kFloat)}});
  EXPECT_EQ(testing::snapshot(folder.path()).size(), 1U);
  EXPECT_EQ(SafetensorsReader::open_file(folder / "x.safetensors").tensor("x").size(0), 2);
}

TEST(Safetensors, RefusesToWriteWhatTheFormatOrTheDiskHasNoPlaceFor) {
  const TempFolder folder;
  expect_error<ShapeError>(
      [&] {
        write_safetensors(
            folder / "x.safetensors", {{"x", torch::zeros({1}, torch::kComplexFloat)}});
      },
      {"dtype", "ComplexFloat"});
  expect_error<DeviceError>(
      [&] {
        write_safetensors(folder / "none/x.safetensors", {{"x", torch::zeros({1})}});
      },
      {"none/x.safetensors"});
}

TEST(Safetensors, NamesATensorThatIsMissingOrOfAnotherShape) {
  const TempFolder folder;
  write_safetensors(folder / "x.safetensors", {{"x", count_up({2, 3}, torch::kFloat)}});
  const auto reader = SafetensorsReader::open_file(folder / "x.safetensors");
  EXPECT_TRUE(reader.has("x"));
  EXPECT_FALSE(reader.has("y"));
  EXPECT_EQ(reader.tensor("x", {2, 3}).numel(), 6);
  expect_error<DataError>([&] { reader.tensor("y"); }, {"y:", "x.safetensors"});
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3, 2}, {6}, {2, 3, 1}, {}})
    expect_error<DataError>([&] { reader.tensor("x", shape); }, {"x:", "[2, 3]", "x.safetensors"});
}

TEST(ShardedSafetensors, FindsEachTensorInItsShard) {
  const TempFolder folder;
  write_shards(folder, {{"a", "one.safetensors"}, {"b", "two.safetensors"}});
  const auto reader = SafetensorsReader::open_folder(folder.path());
  EXPECT_EQ(reader.names(), (Names{"a", "b"}));
  expect_same(reader.tensor("a"), count_up({2}, torch::kFloat));
  expect_same(reader.tensor("b"), count_up({3}, torch::kFloat));
}

TEST(ShardedSafetensors, NamesAMissingShardAndAMissingTensor) {
  const TempFolder folder;
  write_shards(folder, {{"a", "one.safetensors"}, {"b", "three.safetensors"}});
  expect_error<DataError>(
      [&] { SafetensorsReader::open_folder(folder.path()); }, {"three.safetensors"});
  write_shards(folder, {{"a", "one.safetensors"}, {"c", "two.safetensors"}});
  expect_error<DataError>(
      [&] { SafetensorsReader::open_folder(folder.path()); }, {"c:", "two.safetensors"});
}

TEST(ShardedSafetensors, RefusesATensorThatTwoShardsHold) {
  const TempFolder folder;
  write_shards(folder, {{"a", "one.safetensors"}, {"b", "two.safetensors"}});
  write_safetensors(folder / "two.safetensors", {{"a", count_up({2}, torch::kFloat)}});
  expect_error<DataError>(
      [&] { SafetensorsReader::open_folder(folder.path()); }, {"a:", "two.safetensors", "second"});
}

TEST(ShardedSafetensors, NeverLeavesItsFolder) {
  const TempFolder folder;
  write_safetensors(folder / "out.safetensors", {{"a", count_up({2}, torch::kFloat)}});
  for (const std::string& shard :
       {std::string("../out.safetensors"), (folder / "out.safetensors").string(),
        std::string("sub/out.safetensors"), std::string(".."), std::string("."), std::string()}) {
    SCOPED_TRACE(shard);
    folder.write("in/model.safetensors.index.json", Json{{"weight_map", {{"a", shard}}}}.dump());
    expect_error<DataError>(
        [&] { SafetensorsReader::open_folder(folder / "in"); },
        {"a:", "model.safetensors.index.json", "without folders"});
  }
}

TEST(ShardedSafetensors, RefusesAnIndexThatIsNoIndex) {
  const TempFolder folder;
  for (const char* text :
       {"", "{", "[]", "{}", R"({"weight_map": []})", R"({"weight_map": {"a": 1}})"}) {
    SCOPED_TRACE(text);
    folder.write("model.safetensors.index.json", text);
    expect_error<DataError>(
        [&] { SafetensorsReader::open_folder(folder.path()); }, {"model.safetensors.index.json"});
  }
}

TEST(ModelFolder, IsReadWithoutAnIndexToo) {
  const auto reader = SafetensorsReader::open_folder(testing::fixture("targets/qwen3-tiny"));
  EXPECT_EQ(reader.tensor("lm_head.weight").sizes(), (std::vector<int64_t>{211, 64}));
}

TEST(ModelFolder, IsNamedWhenItHoldsNoWeights) {
  const TempFolder folder;
  expect_error<DataError>(
      [&] { SafetensorsReader::open_folder(folder.path()); },
      {folder.path().string(), "model.safetensors"});
}

}  // namespace
}  // namespace draftsmith::formats
