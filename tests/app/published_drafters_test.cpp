// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/formats/safetensors.h"

#include "tests/app/program.h"
#include "tests/formats/published_layouts.h"

namespace draftsmith::app {
namespace {

namespace fs = std::filesystem;
using testing::operator+;
using testing::Arguments;
using testing::fixture;
using testing::run_program;
using testing::TempFolder;

const fs::path kTarget = fixture("targets/qwen3-tiny");

formats::NamedTensors tensors_of(const fs::path& file) {
  const auto reader = formats::SafetensorsReader::open_file(file);
  formats::NamedTensors tensors;
  for (const std::string& name : reader.names())
    tensors.emplace_back(name, reader.tensor(name));
  return tensors;
}

/// The drafter of drafter/full in other people's layouts.
struct PublishedDrafter : ::testing::Test {
  TempFolder folder;
  formats::Json zlab = formats::read_json_file(fixture("drafter/full") / "config.json");
  formats::NamedTensors tensors = tensors_of(fixture("drafter/full") / "model.safetensors");

  fs::path write(const std::string& name, const formats::Json& json) const {
    folder.write(name + "/config.json", json.dump());
    formats::write_safetensors(folder / name / "model.safetensors", tensors);
    return folder / name;
  }
  torch::Tensor target_tensor(const std::string& name) const {
    return testing::golden("targets/qwen3-tiny/model.safetensors").tensor(name);
  }
  fs::path write_torchspec() {
    for (auto& [name, tensor] : tensors) {
      if (name == "fc.weight") name = "context_proj.weight";
      if (name == "hidden_norm.weight") name = "context_norm.weight";
      if (name == "norm.weight") name = "final_norm.weight";
    }
    tensors.emplace_back("embed_tokens.weight", target_tensor("model.embed_tokens.weight"));
    return write("torchspec", testing::as_torchspec(zlab));
  }
  fs::path write_speculators() {
    tensors.emplace_back("embed_tokens.weight", target_tensor("model.embed_tokens.weight"));
    tensors.emplace_back("lm_head.weight", target_tensor("lm_head.weight"));
    return write("speculators", testing::as_speculators(zlab));
  }
  /// States of the fixture's blocks, computed from a folder.
  torch::Tensor states(const fs::path& init) const {
    const auto output = folder / "states.safetensors";
    const auto input = fixture("drafter/full") / "expected.safetensors";
    const auto result = run_program(
        {"probe", "drafter", "--input", input.string(), "--output", output.string(), "--drafter",
         init.string(), "--target", kTarget.string(), "--loss.kl_weight=0"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err.find("not used"), std::string::npos) << result.err;
    return formats::SafetensorsReader::open_file(output).tensor("hidden").clone();
  }
  Arguments eval_arguments(const fs::path& init) const {
    return {
        "eval",
        "--target.path=" + kTarget.string(),
        "--target.dtype=float32",
        "--drafter.dtype=float32",
        "--drafter.init=" + init.string(),
        "--eval.prompts=" + testing::write_prompts(folder, 2).string(),
        "--eval.max_new_tokens=12",
        "--eval.ignore_stop=true",
        "--json"};
  }
};

TEST_F(PublishedDrafter, ComputesTheSameStatesInEveryLayout) {
  const auto wanted = states(fixture("drafter/full"));
  formats::Json nested = zlab;
  nested["dflash_config"]["block_size"] = nested.at("block_size");
  nested.erase("block_size");
  EXPECT_TRUE(states(write("nested", nested)).equal(wanted));
  EXPECT_TRUE(states(write_speculators()).equal(wanted));
}

TEST_F(PublishedDrafter, OfTorchSpecComputesTheSameStates) {
  EXPECT_TRUE(states(write_torchspec()).equal(states(fixture("drafter/full"))));
}

TEST_F(PublishedDrafter, IsEvaluated) {
  const auto result = run_program(eval_arguments(write_speculators()));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(formats::Json::parse(result.out).at("is_identical"), true);
}

TEST_F(PublishedDrafter, IsTrainedOn) {
  const auto dataset = testing::write_tiny_dataset(folder);
  const auto result = run_program(
      {"train", "--target.path=" + kTarget.string(), "--target.dtype=float32",
       "--drafter.dtype=float32", "--drafter.init=" + write_torchspec().string(),
       "--data.path=" + dataset.string(), "--train.out=" + (folder / "run").string(),
       "--train.max_steps=1", "--train.lr=0"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  // A step of nothing leaves the weights, and the checkpoint has our names for them.
  const auto reader = formats::SafetensorsReader::open_folder(folder / "run/checkpoints/step-1");
  const auto fixture_tensors = tensors_of(fixture("drafter/full") / "model.safetensors");
  for (const auto& [name, tensor] : fixture_tensors)
    EXPECT_TRUE(reader.tensor(name).equal(tensor)) << name;
}

TEST_F(PublishedDrafter, WithAHeadOfItsOwnIsRefused) {
  const auto init = write_speculators();
  tensors.back().second = tensors.back().second + 1;
  write("speculators", testing::as_speculators(zlab));
  const auto arguments = eval_arguments(init);
  testing::expect_refused(folder, arguments, 3, {"lm_head.weight", "the target's own"});
}

}  // namespace
}  // namespace draftsmith::app
