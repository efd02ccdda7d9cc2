// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "draftsmith/app/run_config.h"
#include "draftsmith/base/atomic_file.h"

#include "tests/app/program.h"

namespace draftsmith::app {
namespace {

namespace fs = std::filesystem;
using testing::operator+;
using testing::Arguments;
using testing::expect_refused;
using testing::fixture;
using testing::run_program;

struct Eval : ::testing::Test {
  testing::TempFolder folder;
  fs::path prompts = testing::write_prompts(folder, 4, 22);

  Arguments arguments(const fs::path& target, const fs::path& prompt_file) const {
    return {
        "eval",
        "--target.path=" + target.string(),
        "--target.dtype=float32",
        "--drafter.dtype=float32",
        "--drafter.init=" + fixture("decode/drafter").string(),
        "--eval.prompts=" + prompt_file.string(),
        "--eval.max_new_tokens=16",
        "--eval.ignore_stop=true"};
  }
  Arguments arguments() const { return arguments(fixture("decode/target"), prompts); }

  static std::string run(const Arguments& arguments) {
    const auto result = run_program(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  }
  static formats::Json run_json(const Arguments& arguments) {
    return formats::Json::parse(run(arguments + Arguments{"--json"}));
  }

  /// The fixture's target with words for tokens.
  fs::path make_target_with_words() const {
    fs::copy(fixture("decode/target"), folder / "target");
    formats::Json words;
    for (int i = 0; i < 23; ++i)
      words[fmt::format("w{}", i)] = i;
    const formats::Json tokenizer = {
        {"version", "1.0"},
        {"truncation", nullptr},
        {"padding", nullptr},
        {"added_tokens", formats::Json::array()},
        {"normalizer", nullptr},
        {"pre_tokenizer", {{"type", "Whitespace"}}},
        {"post_processor", nullptr},
        {"decoder", nullptr},
        {"model", {{"type", "WordLevel"}, {"vocab", words}, {"unk_token", "w0"}}}};
    folder.write("target/tokenizer.json", tokenizer.dump());
    return folder / "target";
  }
};

TEST_F(Eval, ReportsATreeBySets) {
  const auto chain = run_json(arguments());
  const auto tree =
      run_json(arguments() + Arguments{"--eval.method=tree", "--eval.tree_budget=30"});
  EXPECT_EQ(tree.at("method"), "tree");
  EXPECT_EQ(tree.at("tree_budget"), 30);
  EXPECT_EQ(chain.at("is_identical"), true);
  EXPECT_EQ(tree.at("is_identical"), true);
  EXPECT_EQ(tree.at("tokens"), 4 * 15);
  EXPECT_LT(tree.at("rounds").get<int>(), chain.at("rounds").get<int>());
  EXPECT_GT(
      tree.at("acceptance_length").get<double>(), chain.at("acceptance_length").get<double>());
  for (const char* part : {"prefill", "draft", "tree", "verify", "commit"})
    EXPECT_GT(tree.at("seconds").at(part).get<double>(), 0) << part;
  for (const char* set : {"even", "odd"}) {
    EXPECT_EQ(tree.at("sets").at(set).at("responses"), 2);
    EXPECT_EQ(tree.at("sets").at(set).at("histogram").size(), 5U);
    EXPECT_GT(tree.at("sets").at(set).at("speculative_tokens_per_s").get<double>(), 0);
  }
}

TEST_F(Eval, PrintsSlotsAndRoundsOfEachSet) {
  const auto json = run_json(arguments());
  const auto text = run(arguments());
  for (const std::string name : {"even", "odd"}) {
    const auto& set = json.at("sets").at(name);
    const auto join = [&](const auto& list) {
      return fmt::format("\n{:<12} {}\n", name, fmt::join(list, " "));
    };
    std::vector<std::string> slots;
    for (const double share : set.at("by_slot"))
      slots.push_back(fmt::format("{:.3f}", share));
    EXPECT_NE(text.find(join(slots)), std::string::npos) << text;
    const auto histogram = set.at("histogram").get<std::vector<int64_t>>();
    EXPECT_NE(
        text.find(join(std::vector<int64_t>(histogram.begin() + 1, histogram.end()))),
        std::string::npos)
        << text;
  }
}

TEST_F(Eval, SweepsOverBudgetsAndNamesTheFastest) {
  const Arguments sweep = {"--eval.sweep=budget", "--eval.max_new_tokens=6"};
  const auto json = run_json(arguments() + sweep);
  ASSERT_EQ(json.at("sweep").size(), 11U);  // the chain and ten budgets, the one that was set too
  EXPECT_EQ(json.at("sweep")[0].at("method"), "chain");
  EXPECT_EQ(json.at("sweep")[10].at("tree_budget"), 64);
  double fastest = 0;
  for (const auto& item : json.at("sweep")) {
    EXPECT_EQ(item.at("is_identical"), true);
    fastest = std::max(fastest, item.at("speculative_tokens_per_s").get<double>());
  }
  bool is_named = false;
  for (const auto& item : json.at("sweep")) {
    const bool is_fastest = item.at("speculative_tokens_per_s").get<double>() == fastest;
    const std::string name = item.at("method") == "chain"
                                 ? "chain"
                                 : fmt::format("tree of {}", item.at("tree_budget").get<int>());
    is_named = is_named || (is_fastest && json.at("fastest") == name);
  }
  EXPECT_TRUE(is_named) << json.at("fastest");
  EXPECT_NE(run(arguments() + sweep).find("fastest here: --eval.method="), std::string::npos);
}

TEST_F(Eval, ComparesTwoDraftersOnTheSamePrompts) {
  const auto json =
      run_json(arguments() + Arguments{"--eval.compare=" + fixture("decode/drafter").string()});
  EXPECT_EQ(json.at("difference"), 0);
  EXPECT_EQ(json.at("difference_95"), (formats::Json{0.0, 0.0}));
  EXPECT_EQ(json.at("compared").at("rounds"), json.at("rounds"));
  EXPECT_EQ(json.at("compared").at("is_identical"), true);
}

TEST_F(Eval, TracesRoundsAsText) {
  const auto target = make_target_with_words();
  const auto out =
      run(arguments(target, prompts) +
          Arguments{
              "--trace", "--eval.method=tree", "--eval.tree_budget=4", "--eval.max_new_tokens=3"});
  EXPECT_NE(out.find("prompt 0, token 1: after \"w"), std::string::npos) << out;
  EXPECT_NE(out.find("proposed 4, accepted "), std::string::npos) << out;
  EXPECT_NE(out.find("then the target's own \"w"), std::string::npos) << out;
  // Without a tokenizer the same as numbers.
  const auto numbers = run(arguments() + Arguments{"--trace", "--eval.max_new_tokens=3"});
  EXPECT_NE(numbers.find("proposed 3, accepted "), std::string::npos) << numbers;
  EXPECT_EQ(numbers.find("\"w"), std::string::npos);
}

TEST_F(Eval, ReadsTextForATargetWithATokenizer) {
  const auto target = make_target_with_words();
  const auto text = folder.write(
      "text.jsonl",
      "{\"text\": \"w3 w5 w5\", \"set\": \"even\"}\n{\"input_ids\": [7, 1], \"set\": \"odd\"}\n");
  const auto ids = folder.write(
      "ids.jsonl",
      "{\"input_ids\": [3, 5, 5], \"set\": \"even\"}\n{\"input_ids\": [7, 1], \"set\": \"odd\"}\n");
  const auto from_text = run_json(arguments(target, text));
  const auto from_ids = run_json(arguments(target, ids));
  EXPECT_EQ(from_text.at("histogram"), from_ids.at("histogram"));
  EXPECT_EQ(
      from_text.at("sets").at("even").at("rounds"), from_ids.at("sets").at("even").at("rounds"));
}

TEST_F(Eval, RefusesTextForATargetWithoutATokenizer) {
  const auto text = folder.write("text.jsonl", "{\"text\": \"w3\"}\n");
  expect_refused(folder, arguments(fixture("decode/target"), text), 3, {"text", "tokenizer.json"});
}

TEST_F(Eval, GivesTheSameAnswersAtATemperature) {
  for (const char* method : {"chain", "tree"}) {
    const auto json = run_json(
        arguments() + Arguments{"--eval.temperature=0.7", std::string("--eval.method=") + method});
    EXPECT_EQ(json.at("is_identical"), true) << method;
  }
}

TEST_F(Eval, ClaimsNoEqualityOfAnswersWhoseDraftsAreDrawn) {
  const Arguments drawn = {"--eval.temperature=0.7", "--eval.sample_drafts=true"};
  const auto json = run_json(arguments() + drawn);
  EXPECT_EQ(json.at("tokens"), 4 * 15);
  EXPECT_TRUE(json.at("is_identical").is_null());
  EXPECT_NE(
      run(arguments() + drawn).find("output equal to plain decoding: not compared"),
      std::string::npos);
  // At temperature 0 the best guess is drawn.
  EXPECT_EQ(
      run_json(arguments() + Arguments{"--eval.sample_drafts=true"}).at("is_identical"), true);
}

TEST(RunName, SaysThatTheRunIsForTrees) {
  RunConfig config;
  formats::DrafterConfig drafter;
  drafter.block_size = 16;
  EXPECT_EQ(make_run_name(config, drafter), "exp-g10-bs16-a1024-kl15-cap01");
  config.train.eval_method = "tree";
  EXPECT_EQ(make_run_name(config, drafter), "exp-ddtree-g10-bs16-a1024-kl15-cap01");
}

TEST(RunName, SaysThatLayersSlide) {
  formats::DrafterConfig drafter;
  drafter.block_size = 8;
  drafter.is_sliding = {false, true};
  EXPECT_EQ(make_run_name({}, drafter), "exp-g10-bs8-a1024-swa-kl15-cap01");
}

TEST(RunName, IsThatOfTheDrafterThatTheRunBeginsWith) {
  const testing::TempFolder folder;
  const auto dataset = testing::write_tiny_dataset(folder);
  const auto result = run_program(
      {"train", "--target.path=" + fixture("targets/qwen3-tiny").string(), "--target.dtype=float32",
       "--drafter.dtype=float32", "--drafter.init=" + fixture("drafter/sliding").string(),
       "--data.path=" + dataset.string(), "--train.out=" + (folder / "run").string(),
       "--train.max_steps=1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(
      read_file(folder / "run/settings.toml").find("name = \"exp-g10-bs4-a1024-swa-kl15-cap01\""),
      std::string::npos);
}

TEST_F(Eval, RefusesSettingsThatDoNotGoTogether) {
  expect_refused(
      folder, arguments() + Arguments{"--eval.method=tree", "--eval.sample_drafts=true"}, 2,
      {"eval.sample_drafts"});
  expect_refused(
      folder, arguments() + Arguments{"--eval.sweep=budget", "--eval.compare=x"}, 2,
      {"eval.sweep", "eval.compare"});
  expect_refused(folder, arguments() + Arguments{"--trace", "--json"}, 2, {"--trace"});
}

}  // namespace
}  // namespace draftsmith::app
