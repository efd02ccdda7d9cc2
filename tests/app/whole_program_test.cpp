// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <sstream>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/model/drafter.h"

#include "tests/app/program.h"

namespace draftsmith::app {
namespace {

namespace fs = std::filesystem;
using testing::operator+;
using testing::Arguments;
using testing::fixture;
using testing::run_program;
using testing::TempFolder;

struct WholeProgram : ::testing::Test {
  TempFolder folder;
  fs::path target = fixture("targets/qwen3-tiny");
  fs::path run = folder / "run";

  std::string expect_done(const Arguments& arguments) {
    const auto result = run_program(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  }
  std::vector<int64_t> logged_steps(const fs::path& of) const {
    std::vector<int64_t> steps;
    std::istringstream stream(read_file(of / "metrics.jsonl"));
    for (std::string line; std::getline(stream, line);)
      steps.push_back(formats::Json::parse(line).at("step").get<int64_t>());
    return steps;
  }
  fs::path generate() {
    const auto prompts = testing::write_prompts(folder, 6);
    expect_done(
        {"generate", "--target.path=" + target.string(), "--target.dtype=float32",
         "--generate.prompts=" + prompts.string(),
         "--generate.out=" + (folder / "answers").string(), "--generate.max_new_tokens=12",
         "--generate.ignore_stop=true", "--generate.batch=4"});
    return folder / "answers";
  }
};

TEST_F(WholeProgram, GeneratesADatasetInTheOrderOfThePrompts) {
  const auto dataset = data::TokenDataset::open(generate(), "");
  ASSERT_EQ(dataset.num_sequences(), 6);
  for (int64_t i = 0; i < 6; ++i) {
    const auto prompt = testing::make_ids(3 + i, 200, static_cast<uint64_t>(i));
    const auto sequence = dataset.sequence(i);
    ASSERT_EQ(sequence.ids.size(), prompt.size() + 12);
    EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), sequence.ids.begin()));
    std::vector<uint8_t> mask(prompt.size(), 0);
    mask.resize(prompt.size() + 12, 1);
    EXPECT_EQ(sequence.mask, mask);
  }
}

TEST_F(WholeProgram, TrainsOnGeneratedAnswersAndResumes) {
  const auto dataset = generate();
  expect_done(testing::train_arguments(target, dataset, run));
  for (const char* name :
       {"settings.toml", "log.txt", "metrics.jsonl", "checkpoints/step-4/state.json",
        "checkpoints/step-4/model.safetensors", "export/config.json", "export/model.safetensors"})
    EXPECT_TRUE(fs::exists(run / name)) << name;
  EXPECT_EQ(logged_steps(run), (std::vector<int64_t>{1, 2, 3, 4}));
  EXPECT_NE(read_file(run / "log.txt").find("trained 4 steps"), std::string::npos);

  // The run's own settings count: no target, no dataset, no drafter is named again.
  expect_done({"train", "--resume", "--train.out=" + run.string(), "--train.max_steps=8"});
  EXPECT_EQ(logged_steps(run), (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_TRUE(fs::exists(run / "checkpoints/step-8"));
  const auto exported = model::Drafter::load(run / "export", torch::kBFloat16);
  EXPECT_EQ(exported.config().block_size, 4);
  EXPECT_EQ(exported.config().target_layer_ids, (std::vector<int64_t>{0, 2}));
  EXPECT_NE(read_file(run / "settings.toml").find("max_steps = 8"), std::string::npos);

  // Both parts stay in the log.
  const std::string log = read_file(run / "log.txt");
  EXPECT_NE(log.find("trained 4 steps"), std::string::npos);
  EXPECT_NE(log.find("trained 8 steps"), std::string::npos);
}

TEST_F(WholeProgram, ResumesToTheWeightsOfTheUnbrokenRun) {
  const auto dataset = testing::write_tiny_dataset(folder);
  const Arguments constant = {"--train.schedule=constant", "--train.warmup=0"};
  expect_done(testing::train_arguments(target, dataset, folder / "whole", 6) + constant);
  expect_done(testing::train_arguments(target, dataset, run, 3) + constant);
  expect_done({"train", "--resume", "--train.out=" + run.string(), "--train.max_steps=6"});
  for (const char* file :
       {"checkpoints/step-6/model.safetensors", "checkpoints/step-6/optimizer.safetensors"})
    EXPECT_TRUE(read_file(run / file) == read_file(folder / "whole" / file)) << file;
}

TEST_F(WholeProgram, EvaluatesTheNewestCheckpointOfARun) {
  const auto dataset = testing::write_tiny_dataset(folder);
  expect_done(testing::train_arguments(target, dataset, run));
  const auto prompts = testing::write_prompts(folder, 4);
  const Arguments arguments = {
      "eval",
      "--target.path=" + target.string(),
      "--target.dtype=float32",
      "--drafter.dtype=float32",
      "--drafter.init=" + run.string(),
      "--eval.prompts=" + prompts.string(),
      "--eval.max_new_tokens=16",
      "--eval.ignore_stop=true"};
  const auto json = formats::Json::parse(expect_done(arguments + Arguments{"--json"}));
  EXPECT_EQ(json.at("is_identical"), true);
  EXPECT_TRUE(json.at("differences").empty());
  EXPECT_EQ(json.at("responses"), 4);
  EXPECT_EQ(json.at("tokens"), 4 * 15);
  EXPECT_GE(json.at("acceptance_length").get<double>(), 1);
  EXPECT_EQ(json.at("by_slot").size(), 3U);
  EXPECT_EQ(json.at("histogram").size(), 5U);
  EXPECT_EQ(json.at("sets").at("even").at("responses"), 2);
  EXPECT_EQ(json.at("sets").at("odd").at("responses"), 2);
  EXPECT_NE(expect_done(arguments).find("yes, all tokens"), std::string::npos);
}

TEST_F(WholeProgram, LetsTheCommandLineWinOverTheFile) {
  const auto dataset = testing::write_tiny_dataset(folder);
  const auto file =
      folder.write("run.toml", "[train]\nmax_steps = 1\nlr = 0.25\n[loss]\nkl_weight = 0.5\n");
  expect_done(
      testing::train_arguments(target, dataset, run, 2) + Arguments{"--config=" + file.string()});
  const std::string settings = read_file(run / "settings.toml");
  EXPECT_NE(settings.find("max_steps = 2"), std::string::npos);
  EXPECT_NE(settings.find("lr = 0.25"), std::string::npos);
  EXPECT_NE(settings.find("kl_weight = 0.5"), std::string::npos);
  EXPECT_NE(settings.find("exp-g10-bs4-a1024-kl50-cap01"), std::string::npos) << settings;
}

TEST_F(WholeProgram, StartsADrafterFromTheTarget) {
  const auto dataset = testing::write_tiny_dataset(folder);
  expect_done(
      testing::train_arguments(target, dataset, run) +
      Arguments{"--drafter.init=target", "--train.lr=0"});
  const auto drafter = model::Drafter::load(run / "checkpoints/step-4", torch::kFloat);
  const auto file = testing::golden("targets/qwen3-tiny/model.safetensors");
  const auto& [name, tensor] = drafter.parameters().back();
  EXPECT_EQ(name, "norm.weight");
  EXPECT_TRUE(tensor.equal(file.tensor("model.norm.weight")));
}

TEST_F(WholeProgram, RefusesADrafterOfAnotherTargetBeforeFilesChange) {
  const auto dataset = testing::write_tiny_dataset(folder);
  testing::expect_refused(
      folder,
      testing::train_arguments(target, dataset, run) +
          Arguments{"--drafter.init=" + fixture("decode/drafter").string()},
      3, {"vocab_size", "211", "23"});
}

TEST_F(WholeProgram, KeepsAllThatItSaidInItsLog) {
  const auto dataset = testing::write_tiny_dataset(folder);
  const auto result = run_program(testing::train_arguments(target, dataset, run));
  std::istringstream said(result.err + result.out);
  const std::string log = read_file(run / "log.txt");
  for (std::string line; std::getline(said, line);)
    EXPECT_NE(log.find(line), std::string::npos) << line;
}

}  // namespace
}  // namespace draftsmith::app
