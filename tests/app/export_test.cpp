// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/formats/safetensors.h"
#include "draftsmith/model/drafter.h"
#include "draftsmith/model/rope.h"
#include "draftsmith/ops/rotary.h"

#include "tests/app/program.h"

namespace draftsmith::app {
namespace {

namespace fs = std::filesystem;
using testing::operator+;
using testing::Arguments;
using testing::expect_refused;
using testing::fixture;
using testing::run_program;
using testing::TempFolder;

const fs::path kTarget = fixture("targets/qwen3-tiny");

Arguments
export_arguments(const fs::path& init, const std::string& format, const fs::path& out = {}) {
  Arguments arguments = {
      "export", "--format=" + format, "--drafter.init=" + init.string(),
      "--target.path=" + kTarget.string()};
  if (!out.empty()) arguments.push_back("--out=" + out.string());
  return arguments;
}

struct Export : ::testing::Test {
  TempFolder folder;
  fs::path out = folder / "out";

  formats::Json exported(const Arguments& arguments) {
    const auto result = run_program(arguments + Arguments{"--check"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return formats::read_json_file(out / "config.json");
  }
};

// F20: train with choices that are nobody's default, export, and reload with the files alone.
TEST_F(Export, OfARunSaysAllThatWasTrained) {
  const auto dataset = testing::write_tiny_dataset(folder);
  const auto run = folder / "run";
  const auto trained = run_program(
      testing::train_arguments(kTarget, dataset, run, 2) +
      Arguments{
          "--drafter.block_size=8", "--drafter.layer_types=sliding_attention,full_attention",
          "--drafter.sliding_window=64"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  out = run / "export";  // the default of --out
  const auto json = exported(export_arguments(run, "zlab"));
  EXPECT_EQ(json.at("architectures"), formats::Json({"DFlashDraftModel"}));
  EXPECT_EQ(json.at("block_size"), 8);
  EXPECT_EQ(json.at("dflash_config").at("block_size"), 8);
  EXPECT_EQ(json.at("dflash_config").at("mask_token_id"), 205);
  EXPECT_EQ(json.at("dflash_config").at("target_layer_ids"), formats::Json({0, 2}));
  EXPECT_EQ(json.at("num_target_layers"), 4);
  EXPECT_EQ(json.at("layer_types"), formats::Json({"sliding_attention", "full_attention"}));
  EXPECT_EQ(json.at("sliding_window"), 64);
  EXPECT_EQ(json.at("use_sliding_window"), true);
  EXPECT_EQ(json.at("dtype"), "bfloat16");
  EXPECT_FALSE(json.contains("is_causal"));
  const auto published = formats::read_json_file(fixture("drafter/sliding") / "config.json");
  for (const auto& [key, value] : published.items()) {
    if (key == "transformers_version") continue;
    EXPECT_TRUE(json.contains(key)) << key;
  }

  const auto checkpoint =
      model::Drafter::load(run / "checkpoints/step-2", torch::kBFloat16);  // trained in float32
  const auto reader = formats::SafetensorsReader::open_folder(out);
  EXPECT_EQ(reader.names().size(), checkpoint.parameters().size());
  for (const auto& [name, tensor] : checkpoint.parameters())
    EXPECT_TRUE(reader.tensor(name).equal(tensor)) << name;
}

// F03: a hybrid target rotates a quarter of each head, its drafter whole heads: the file must not
// say otherwise.
TEST_F(Export, OfADrafterForAHybridTargetRotatesWholeHeads) {
  const auto hybrid = fixture("targets/qwen3_5-tiny");
  const auto trained = run_program(
      testing::train_arguments(hybrid, testing::write_tiny_dataset(folder), folder / "run", 5) +
      Arguments{"--drafter.head_dim=16"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  out = folder / "run/export";
  exported(
      {"export", "--format=zlab", "--drafter.init=" + (folder / "run").string(),
       "--target.path=" + hybrid.string()});
  const std::string text = read_file(out / "config.json");
  for (const char* key : {"partial_rotary_factor", "mrope", "linear_", "mtp"})
    EXPECT_EQ(text.find(key), std::string::npos) << key;
  const auto config = formats::read_drafter_config(out);
  EXPECT_EQ(config.head_dim, 16);
  const auto unit = torch::ones({1, 1, 1, config.head_dim});
  const auto angles = model::Rope(config.rope, config.head_dim)
                          .angles(torch::full({1, 1}, 1000, torch::kLong), torch::kFloat);
  EXPECT_EQ(ops::apply_rotary(unit, angles).ne(unit).sum().item<int64_t>(), 16);
}

// F20: what a reader would have to guess, our own evaluator refuses by name.
TEST_F(Export, IsRefusedByTheEvaluatorWithoutAnyNeededKey) {
  const auto whole = exported(export_arguments(fixture("drafter/sliding"), "zlab", out));
  const auto prompts = testing::write_prompts(folder, 1);
  for (const std::string key :
       {"block_size", "mask_token_id", "target_layer_ids", "layer_types", "sliding_window",
        "rope_theta", "head_dim", "rms_norm_eps"}) {
    SCOPED_TRACE(key);
    auto json = whole;
    json.erase(key);
    json.at("dflash_config").erase(key);
    json.at("rope_parameters").erase(key);
    write_file_atomically(out / "config.json", json.dump());
    expect_refused(
        folder,
        {"eval", "--target.path=" + kTarget.string(), "--drafter.init=" + out.string(),
         "--eval.prompts=" + prompts.string()},
        3, {key, "config.json"});
  }
}

TEST_F(Export, PassesItsCheckInEveryFormat) {
  for (const char* format : {"zlab", "specforge", "sglang", "vllm", "speculators"}) {
    for (const char* name : {"drafter/full", "drafter/sliding"}) {
      SCOPED_TRACE(std::string(format) + " " + name);
      exported(export_arguments(fixture(name), format, out));  // replaces the one before
    }
  }
  EXPECT_EQ(testing::snapshot(folder.path()).size(), 2U);  // no file of the check is left
}

TEST_F(Export, OfAnExportIsTheSameFolder) {
  exported(export_arguments(fixture("drafter/sliding"), "zlab", out));
  const auto before = testing::snapshot(out);
  for (const char* format : {"speculators", "vllm", "zlab"}) {
    const auto next = folder / format;
    const auto result = run_program(export_arguments(out, format, next));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    out = next;
  }
  EXPECT_TRUE(testing::snapshot(out) == before);
}

TEST_F(Export, NamesTheTargetAsItIsTold) {
  const auto json = exported(
      export_arguments(fixture("drafter/full"), "speculators", out) +
      Arguments{"--target_name=org/model"});
  EXPECT_EQ(json.at("speculators_config").at("verifier").at("name_or_path"), "org/model");
}

TEST_F(Export, LeavesNoFolderThatFailsItsCheck) {
  const at::NoGradGuard no_grad;
  auto drafter = model::Drafter::load(fixture("drafter/full"), torch::kFloat);
  drafter.parameters().front().second.fill_(std::nan(""));
  fs::create_directories(folder / "broken");
  drafter.save(folder / "broken", torch::kFloat);
  expect_refused(
      folder, export_arguments(folder / "broken", "zlab", out) + Arguments{"--check"}, 3,
      {"export check", "not finite", out.string()});
  EXPECT_FALSE(fs::exists(out));
}

TEST_F(Export, RefusesWhatItCannotDo) {
  expect_refused(folder, export_arguments(fixture("drafter/full"), "gguf", out), 2, {"--format"});
  expect_refused(folder, {"export", "--format=zlab", "--out=" + out.string()}, 2, {"drafter.init"});
  expect_refused(folder, export_arguments(fixture("drafter/full"), "zlab"), 2, {"--out"});
  expect_refused(
      folder,
      {"export", "--format=speculators", "--drafter.init=" + fixture("drafter/full").string(),
       "--out=" + out.string()},
      2, {"target.path"});
  expect_refused(
      folder, export_arguments(fixture("decode/drafter"), "zlab", out), 3, {"vocab_size"});
  folder.write("out/notes.txt", "mine");
  expect_refused(
      folder, export_arguments(fixture("drafter/full"), "zlab", out), 2, {"--out", "notes.txt"});
}

}  // namespace
}  // namespace draftsmith::app
