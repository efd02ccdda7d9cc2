// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/app/program.h"

namespace draftsmith::app {
namespace {

namespace fs = std::filesystem;
using formats::NamedTensors;
using testing::operator+;
using testing::Arguments;
using testing::fixture;
using testing::golden;

struct ProbeErrors : ::testing::Test {
  testing::TempFolder folder;
  std::string target = "--target=" + fixture("targets/qwen3-tiny").string();
  std::string drafter = "--drafter=" + fixture("drafter/full").string();

  void expect_refused(
      const NamedTensors& input,
      const Arguments& arguments,
      int exit_code,
      const std::vector<std::string>& parts) {
    formats::write_safetensors(folder / "input", input);
    expect_file_refused(arguments, exit_code, parts);
  }
  void expect_file_refused(
      const Arguments& arguments,
      int exit_code,
      const std::vector<std::string>& parts) {
    testing::expect_refused(
        folder,
        Arguments{"probe"} + arguments +
            Arguments{
                "--input=" + (folder / "input").string(),
                "--output=" + (folder / "output").string()},
        exit_code, parts);
    EXPECT_FALSE(fs::exists(folder / "output"));
  }

  /// The four tensors of `blocks`, one of them changed.
  static NamedTensors make_blocks(
      const std::string& changed = "",
      const torch::Tensor& value = {}) {
    NamedTensors input = {
        {"input_ids", torch::ones({1, 8}, torch::kLong)},
        {"loss_mask", torch::ones({1, 8}, torch::kByte)},
        {"anchors", torch::tensor({2, 3}, torch::kLong).view({1, 2})},
        {"keep", torch::ones({1, 2}, torch::kByte)}};
    for (auto& [name, tensor] : input)
      if (name == changed) tensor = value;
    std::erase_if(input, [](const auto& item) { return !item.second.defined(); });
    return input;
  }
};

TEST_F(ProbeErrors, RefuseLengthsOutsideTheRow) {
  for (const int64_t length : {0, 9})
    expect_refused(
        {{"input_ids", torch::ones({1, 8}, torch::kLong)}, {"lengths", torch::tensor({length})}},
        {"target", target}, 4, {"lengths", "1 to 8"});
}

TEST_F(ProbeErrors, RefuseAMissingTensor) {
  expect_refused(
      {{"ids", torch::ones({1, 8}, torch::kLong)}}, {"target", target}, 4, {"input_ids"});
  for (const char* name : {"loss_mask", "anchors"})
    expect_refused(make_blocks(name), {"blocks", drafter}, 4, {name});
}

TEST_F(ProbeErrors, RefuseATensorOfAnotherShapeOrKind) {
  expect_refused(
      {{"input_ids", torch::ones({1, 8})}}, {"target", target}, 4, {"input_ids", "Float"});
  expect_refused(
      make_blocks("loss_mask", torch::ones({1, 7})), {"blocks", drafter}, 4, {"loss_mask"});
}

TEST_F(ProbeErrors, RefuseAnAnchorOutsideTheRow) {
  for (const int64_t anchor : {8, -1})
    expect_refused(
        make_blocks("anchors", torch::tensor({int64_t{2}, anchor}).view({1, 2})),
        {"blocks", drafter}, 4, {"anchor", std::to_string(anchor)});
}

TEST_F(ProbeErrors, RefuseIdsOutsideTheVocabulary) {
  const auto ids = torch::full({1, 8}, 211, torch::kLong);
  expect_refused({{"input_ids", ids}}, {"target", target}, 3, {"211"});
  expect_refused(make_blocks("input_ids", ids), {"blocks", drafter}, 3, {"211"});
  expect_refused({{"prompt", ids[0]}}, {"decode", target, drafter}, 3, {"211"});
}

TEST_F(ProbeErrors, RefuseAnUnknownDtypeMethodOrStage) {
  const NamedTensors input = {{"input_ids", torch::ones({1, 8}, torch::kLong)}};
  expect_refused(input, {"target", target, "--dtype=float64"}, 2, {"--dtype", "'float64'"});
  expect_refused(
      {{"prompt", torch::ones({3}, torch::kLong)}}, {"decode", target, drafter, "--method=beam"}, 2,
      {"'beam'"});
  expect_refused(input, {"embedding", target}, 2, {"'embedding'"});
  expect_refused(input, {"target"}, 2, {"--target"});
}

TEST_F(ProbeErrors, RefuseADamagedOrMissingInputFile) {
  folder.write("input", "no safetensors");
  expect_file_refused({"target", target}, 3, {"input"});
  fs::remove(folder / "input");
  expect_file_refused({"target", target}, 3, {"input"});
}

TEST_F(ProbeErrors, RefuseDistillationWithoutATeacher) {
  expect_refused(
      {{"hidden", torch::ones({2, 4})},
       {"lm_head", torch::ones({3, 4})},
       {"labels", torch::zeros({2}, torch::kLong)},
       {"weights", torch::ones({2})}},
      {"loss"}, 4, {"teacher", "--loss.kl_weight=0"});
}

TEST_F(ProbeErrors, RefuseALabelOutsideTheVocabulary) {
  expect_refused(
      {{"hidden", torch::ones({2, 4})},
       {"lm_head", torch::ones({3, 4})},
       {"labels", torch::full({2}, 3, torch::kLong)},
       {"weights", torch::ones({2})}},
      {"loss", "--loss.kl_weight=0"}, 4, {"labels"});
}

TEST_F(ProbeErrors, RefuseAnEmptyPrompt) {
  expect_refused(
      {{"prompt", torch::ones({0}, torch::kLong)}}, {"decode", target, drafter}, 4, {"prompt"});
}

TEST_F(ProbeErrors, RefuseADrafterOfAnotherTarget) {
  expect_refused(
      make_blocks(), {"drafter", target, "--drafter=" + fixture("decode/drafter").string()}, 3,
      {"vocab_size"});
}

TEST_F(ProbeErrors, RefuseFeaturesOfAnotherWidth) {
  auto input = make_blocks();
  input.emplace_back("target_hidden", torch::ones({1, 8, 64}));
  expect_refused(
      input, {"drafter", target, drafter, "--loss.kl_weight=0"}, 4, {"target_hidden", "128"});
}

}  // namespace
}  // namespace draftsmith::app
