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
using testing::fixture;
using testing::run_program;
using testing::TempFolder;

struct BadSettings : ::testing::Test {
  TempFolder folder;
  fs::path target = fixture("targets/qwen3-tiny");
  fs::path dataset = testing::write_tiny_dataset(folder);

  Arguments train(const Arguments& more = {}, int64_t max_steps = 4) const {
    return testing::train_arguments(target, dataset, folder / "run", max_steps) + more;
  }
};

TEST_F(BadSettings, AreAnsweredWithTheNearestKeyOnTheCommandLine) {
  expect_refused(folder, train({"--train.max_step=5"}), 2, {"'train.max_step'", "train.max_steps"});
  expect_refused(folder, train({"--drafter.blocksize=8"}), 2, {"drafter.block_size"});
}

TEST_F(BadSettings, AreAnsweredWithTheNearestKeyInAFile) {
  const auto file =
      folder.write("run.toml", "[train]\nlearn = 1\nmax_steps = 2\n[data]\nnum_anchor = 3\n");
  expect_refused(
      folder, train({"--config=" + file.string()}), 2,
      {"run.toml", "data.num_anchor", "data.num_anchors"});
}

TEST_F(BadSettings, AreRefusedOutsideTheirRange) {
  expect_refused(folder, train({"--train.accumulation=0"}), 2, {"train.accumulation", "'0'"});
  expect_refused(
      folder, train({"--train.schedule=linear"}), 2, {"train.schedule", "cosine", "'linear'"});
  expect_refused(folder, train({"--drafter.target_layer_ids=0,3"}), 2, {"target_layer_ids"});
}

TEST_F(BadSettings, AreRefusedIfTheFileIsNoToml) {
  const auto file = folder.write("run.toml", "[train]\nmax_steps = \n");
  expect_refused(folder, train({"--config=" + file.string()}), 2, {"run.toml, line 2"});
  expect_refused(folder, train({"--config=no/such.toml"}), 2, {"no/such.toml"});
  for (const char* key : {"[[[train]]]", "é = 1", "[]", "= 1", "\u3001 = 1"}) {
    const auto odd = folder.write("run.toml", std::string("[train]\n") + key + "\n");
    expect_refused(folder, train({"--config=" + odd.string()}), 2, {"run.toml, line 2"});
  }
}

TEST_F(BadSettings, AreRefusedIfTheFileIsLongOrNestsDeeply) {
  const auto refuse = [&](const std::string& text, const char* word) {
    const auto file = folder.write("run.toml", text);
    expect_refused(folder, train({"--config=" + file.string()}), 2, {"run.toml", word});
  };
  const auto nest = [](int levels) {
    std::string key = "a";
    for (int i = 0; i < levels; ++i)
      key += ".a";
    return key;
  };
  refuse(nest(1'000'000) + " = 1\n", "at most 65536 bytes");
  refuse(nest(32'000) + " = 1\n", "a.a: expected");
  refuse("[data]\npath = [{" + nest(30'000) + " = 1}]\n", "at most 4 levels");
}

TEST_F(BadSettings, AreRefusedIfSomethingIsMissing) {
  expect_refused(folder, {"train", "--data.path=x", "--train.out=y"}, 2, {"target.path"});
  expect_refused(folder, {"generate", "--target.path=" + target.string()}, 2, {"generate.prompts"});
}

TEST_F(BadSettings, AreRefusedIfAnswersWouldLeaveTheTargetsPositions) {
  const auto prompts = testing::write_prompts(folder, 3);  // of 3, 4 and 5 tokens; 4,096 positions
  const Arguments generate = {
      "generate", "--target.path=" + target.string(), "--generate.prompts=" + prompts.string(),
      "--generate.out=" + (folder / "answers").string()};
  expect_refused(
      folder, generate + Arguments{"--generate.max_new_tokens=4092"}, 2,
      {"generate.max_new_tokens", "4096", "5 tokens of prompt 3 + 4092",
       "--generate.max_new_tokens=4091"});
  // Blocks of 4 propose 3 tokens beyond the last one.
  expect_refused(
      folder,
      Arguments{"eval", "--eval.prompts=" + prompts.string(), "--eval.max_new_tokens=4089"} +
          testing::tiny_settings(target),
      2, {"eval.max_new_tokens", "+ 3 drafts", "--eval.max_new_tokens=4088"});
  const auto long_prompt = folder.write(
      "long.jsonl", formats::Json{{"input_ids", testing::make_ids(4096, 200, 1)}}.dump() + "\n");
  expect_refused(
      folder,
      {"generate", "--target.path=" + target.string(), "--generate.prompts=" + long_prompt.string(),
       "--generate.out=" + (folder / "answers").string()},
      3, {"4096 tokens of prompt 1", "shorter prompts"});
}

TEST_F(BadSettings, NameAnOutputFolderThatCannotBeWritten) {
  const auto file = folder.write("file", "not a folder");
  expect_refused(
      folder, testing::train_arguments(target, dataset, file / "run"), 2, {"train.out", "written"});
  const auto prompts = testing::write_prompts(folder, 2);
  expect_refused(
      folder,
      {"generate", "--target.path=" + target.string(), "--generate.prompts=" + prompts.string(),
       "--generate.out=" + (file / "dataset").string()},
      2, {"generate.out", "written"});
}

TEST_F(BadSettings, NameATextThatIsNotUtf8) {
  expect_refused(folder, train({"--train.name=a\xff"}), 2, {"train.name", "UTF-8"});
}

TEST_F(BadSettings, NameAPathThatNoFileSystemTakes) {
  const std::string name(300, 'a');
  const std::string setting = "--data.path=" + (folder / name).string();
  expect_refused(folder, train({setting}), 3, {name, "File name too long"});
}

TEST_F(BadSettings, NameAnOutputThatExists) {
  const auto prompts = testing::write_prompts(folder, 2);
  expect_refused(
      folder,
      {"generate", "--target.path=" + target.string(), "--generate.prompts=" + prompts.string(),
       "--generate.out=" + dataset.string()},
      2, {"generate.out"});
}

TEST_F(BadSettings, NameAFolderThatHoldsARunOrNone) {
  folder.write("run/settings.toml", "[train]\n");
  expect_refused(folder, train(), 2, {"train.out", "a run", "--resume"});
  fs::remove_all(folder / "run");
  expect_refused(folder, train({"--resume"}), 2, {"train.out", "no run"});
}

TEST_F(BadSettings, NameTheSettingThatChangedOnResume) {
  ASSERT_EQ(run_program(train({}, 1)).exit_code, 0);
  const Arguments resume = train({"--resume", "--train.lr=0.5"}, 2);
  expect_refused(
      folder, resume, 2, {"train.lr", "'0.0006'", "'0.5'", "--train.allow_change=train.lr"});
  EXPECT_EQ(run_program(resume + Arguments{"--train.allow_change=train.lr"}).exit_code, 0);
  EXPECT_TRUE(fs::exists(folder / "run/checkpoints/step-2"));
}

TEST_F(BadSettings, AreRefusedIfTreesThatChooseTheBestStepHaveNoNodes) {
  // The target, which does not exist, is not looked at.
  expect_refused(
      folder,
      train({"--train.eval_method=tree", "--eval.tree_budget=0", "--target.path=no/such/target"}),
      2, {"eval.tree_budget", "got 0", "train.eval_method=tree", "--eval.tree_budget=32"});
  EXPECT_EQ(run_program(train({"--eval.tree_budget=0"}, 1)).exit_code, 0);
}

TEST_F(BadSettings, AreNotAnsweredByUnknownCommands) {
  for (const Arguments& arguments : {Arguments{"trian"}, Arguments{"train", "surplus"}}) {
    const auto result = run_program(arguments);
    EXPECT_EQ(result.exit_code, 2);
    testing::expect_message_form(testing::last_line(result.err));
  }
}

TEST(Help, EndsWellForEveryCommand) {
  for (const char* command : {"train", "eval", "generate", "probe"}) {
    const auto result = run_program({command, "--help"});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_NE(result.out.find("--config"), std::string::npos) << command;
    EXPECT_TRUE(result.err.empty()) << result.err;
  }
  const auto result = run_program({"--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.out.find("generate"), std::string::npos);
}

}  // namespace
}  // namespace draftsmith::app
