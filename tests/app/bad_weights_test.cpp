// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "draftsmith/base/atomic_file.h"

#include "tests/app/program.h"

namespace draftsmith::app {
namespace {

namespace fs = std::filesystem;
using testing::operator+;
using testing::Arguments;
using testing::expect_refused;
using testing::TempFolder;

/// A copy of the tiny target beside a good dataset; each test damages the copy.
struct BadWeights : ::testing::Test {
  TempFolder folder;
  fs::path target = folder / "target";
  fs::path dataset = testing::write_tiny_dataset(folder);
  std::map<std::string, torch::Tensor> tensors;
  formats::Json config;

  BadWeights() {
    const auto reader = testing::golden("targets/qwen3-tiny/model.safetensors");
    for (const std::string& name : reader.names())
      tensors[name] = reader.tensor(name).clone();
    config = formats::read_json_file(testing::fixture("targets/qwen3-tiny/config.json"));
    fs::create_directories(target);
    write();
  }

  void write() {
    formats::write_safetensors(target / "model.safetensors", {tensors.begin(), tensors.end()});
    write_file_atomically(target / "config.json", config.dump());
  }

  void expect_data_error(const std::vector<std::string>& parts) {
    write();
    expect_train_refused(parts);
  }
  void expect_train_refused(const std::vector<std::string>& parts) {
    expect_refused(folder, testing::train_arguments(target, dataset, folder / "run"), 3, parts);
    EXPECT_FALSE(fs::exists(folder / "run"));
  }
};

TEST_F(BadWeights, AreRefusedIfTheFolderIsMissing) {
  fs::remove_all(target);
  expect_train_refused({"config.json"});
}

TEST_F(BadWeights, AreRefusedIfTheFileIsMissing) {
  fs::remove(target / "model.safetensors");
  expect_train_refused({"weights", "model.safetensors"});
}

TEST_F(BadWeights, AreRefusedIfTheFileIsCutShort) {
  const std::string bytes = read_file(target / "model.safetensors");
  for (const size_t size : {bytes.size() - 1, size_t{12}}) {
    write_file_atomically(target / "model.safetensors", bytes.substr(0, size));
    expect_train_refused({"model.safetensors"});
  }
}

TEST_F(BadWeights, AreRefusedIfAShardOrItsTensorIsMissing) {
  fs::rename(target / "model.safetensors", target / "model-1.safetensors");
  formats::Json map;
  for (const auto& [name, tensor] : tensors)
    map[name] = "model-1.safetensors";
  map["model.norm.weight"] = "model-2.safetensors";
  write_file_atomically(
      target / "model.safetensors.index.json", formats::Json{{"weight_map", map}}.dump());
  expect_train_refused({"model-2.safetensors"});
  formats::write_safetensors(target / "model-2.safetensors", {{"other", torch::zeros({1})}});
  map["lacking.weight"] = "model-2.safetensors";
  write_file_atomically(
      target / "model.safetensors.index.json", formats::Json{{"weight_map", map}}.dump());
  expect_train_refused({"lacking.weight"});
}

TEST_F(BadWeights, AreRefusedIfATensorIsMissing) {
  tensors.erase("model.layers.1.mlp.up_proj.weight");
  expect_data_error({"model.layers.1.mlp.up_proj.weight"});
}

TEST_F(BadWeights, AreRefusedIfAShapeIsWrong) {
  tensors["model.norm.weight"] = torch::ones({63});
  expect_data_error({"model.norm.weight", "[64]", "[63]"});
}

TEST_F(BadWeights, AreRefusedIfADtypeIsWrong) {
  tensors["model.norm.weight"] = torch::ones({64}, torch::kLong);
  expect_data_error({"model.norm.weight", "BF16"});
}

TEST_F(BadWeights, AreRefusedIfTheModelTypeIsUnknown) {
  config["model_type"] = "mamba";
  expect_data_error({"model_type", "llama, qwen3, qwen3_5", "'mamba'"});
}

TEST_F(BadWeights, AreRefusedIfTheRopeTypeIsUnknown) {
  config["rope_parameters"] = {{"rope_type", "longrope"}, {"rope_theta", 10000.0}, {"factor", 2.0}};
  expect_data_error({"rope type", "'longrope'"});
}

TEST_F(BadWeights, AreRefusedIfTheConfigIsNoJson) {
  write_file_atomically(target / "config.json", "{\"model_type\": ");
  expect_train_refused({"config.json"});
}

TEST_F(BadWeights, AreRefusedIfADrafterFolderLacksAKey) {
  fs::create_directories(folder / "drafter");
  for (const char* name : {"config.json", "model.safetensors"})
    fs::copy(testing::fixture("drafter/full") / name, folder / "drafter" / name);
  auto json = formats::read_json_file(folder / "drafter/config.json");
  json["dflash_config"].erase("mask_token_id");
  write_file_atomically(folder / "drafter/config.json", json.dump());
  const auto prompts = testing::write_prompts(folder, 2);
  expect_refused(
      folder,
      {"eval", "--target.path=" + target.string(),
       "--drafter.init=" + (folder / "drafter").string(), "--eval.prompts=" + prompts.string()},
      3, {"mask_token_id"});
}

}  // namespace
}  // namespace draftsmith::app
