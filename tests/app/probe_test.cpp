// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "tests/app/program.h"

namespace draftsmith::app {
namespace {

namespace fs = std::filesystem;
using formats::NamedTensors;
using formats::SafetensorsReader;
using testing::operator+;
using testing::Arguments;
using testing::fixture;
using testing::golden;
using testing::max_difference;
using testing::relative_difference;

struct Probe : ::testing::Test {
  testing::TempFolder folder;

  SafetensorsReader run(const fs::path& input, const Arguments& arguments) const {
    const auto result = testing::run_program(
        Arguments{"probe"} + arguments +
        Arguments{"--input=" + input.string(), "--output=" + (folder / "output").string()});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return SafetensorsReader::open_file(folder / "output");
  }
  SafetensorsReader run(const NamedTensors& input, const Arguments& arguments) const {
    formats::write_safetensors(folder / "input", input);
    return run(folder / "input", arguments);
  }
};

Arguments use(const char* target, const std::string& drafter = "") {
  Arguments arguments = {"--target=" + fixture(target).string()};
  if (!drafter.empty()) arguments.push_back("--drafter=" + fixture(drafter).string());
  return arguments;
}

void expect_kind(const torch::Tensor& tensor, std::vector<int64_t> shape, torch::ScalarType dtype) {
  EXPECT_EQ(tensor.sizes(), at::IntArrayRef(shape));
  EXPECT_EQ(tensor.scalar_type(), dtype);
}

TEST_F(Probe, WritesTheStatesOfTheTarget) {
  const auto file = golden("targets/llama-tiny/expected.safetensors");
  const auto output =
      run({{"input_ids", file.tensor("long.input_ids")}},
          Arguments{"target"} + use("targets/llama-tiny"));
  EXPECT_EQ(output.names(), (std::vector<std::string>{"final", "hidden_states", "logits"}));
  const auto hidden = output.tensor("hidden_states");
  expect_kind(hidden, {4, 1, 150, 64}, torch::kFloat);
  expect_kind(output.tensor("final"), {1, 150, 64}, torch::kFloat);
  expect_kind(output.tensor("logits"), {1, 150, 211}, torch::kFloat);
  const auto entries = file.tensor("long.hidden_states");
  for (int64_t l = 0; l < 3; ++l)
    EXPECT_LE(max_difference(hidden[l][0], entries[l + 1]), 5e-5);
  EXPECT_LE(max_difference(hidden[3], file.tensor("long.last_layer_output")), 5e-5);
  EXPECT_LE(max_difference(output.tensor("final")[0], entries[4]), 5e-5);
  EXPECT_LE(max_difference(output.tensor("logits"), file.tensor("long.logits")), 5e-5);
}

TEST_F(Probe, WritesZerosAtAndAfterTheLengthOfARow) {
  const auto file = golden("targets/qwen3-tiny/expected.safetensors");
  auto ids = torch::full({2, 8}, 9, torch::kLong);
  ids[1].narrow(0, 0, 5).copy_(file.tensor("short.input_ids")[0]);
  const auto output =
      run({{"input_ids", ids}, {"lengths", torch::tensor({8, 5}, torch::kLong)}},
          Arguments{"target"} + use("targets/qwen3-tiny"));
  for (const char* name : {"hidden_states", "final", "logits"}) {
    auto tensor = output.tensor(name);
    if (tensor.dim() == 4) tensor = tensor[1];
    EXPECT_EQ(tensor[1].narrow(0, 5, 3).abs().max().item<double>(), 0) << name;
    EXPECT_GT(tensor[0].narrow(0, 5, 3).abs().max().item<double>(), 0) << name;
  }
  EXPECT_LE(
      max_difference(output.tensor("logits")[1].narrow(0, 0, 5), file.tensor("short.logits")[0]),
      5e-5);
}

TEST_F(Probe, WritesHiddenStatesInTheDtypeOfTheRun) {
  const auto output =
      run({{"input_ids", torch::ones({1, 3}, torch::kInt)}},
          Arguments{"target", "--dtype=bfloat16"} + use("targets/qwen3-tiny"));
  for (const char* name : {"hidden_states", "final", "logits"})
    EXPECT_EQ(output.tensor(name).scalar_type(), torch::kBFloat16);
}

TEST_F(Probe, WritesTheBlocksOfADrafter) {
  for (const std::string drafter : {"drafter/full", "drafter/sliding"}) {
    const auto file = golden(drafter + "/expected.safetensors");
    const auto output =
        run(fixture(drafter + "/expected.safetensors"),
            {"blocks", "--drafter=" + fixture(drafter).string(), "--loss.decay_gamma=10"});
    for (const char* name : {"block_ids", "positions", "labels", "teacher_rows"})
      expect_kind(output.tensor(name), {2, 4, 4}, torch::kLong);
    expect_kind(output.tensor("weights"), {2, 4, 4}, torch::kFloat);
    expect_kind(output.tensor("mask_full"), {2, 16, 40}, torch::kByte);
    EXPECT_TRUE(output.tensor("mask_full").equal(file.tensor("mask.full")));
    EXPECT_EQ(output.has("mask_sliding"), drafter == "drafter/sliding");
    if (!output.has("mask_sliding")) continue;
    EXPECT_TRUE(output.tensor("mask_sliding").equal(file.tensor("mask.sliding")));
  }
}

TEST_F(Probe, FollowsTheWorkedExampleOfABatch) {
  const NamedTensors input = {
      {"input_ids", torch::arange(11, 21, torch::kLong).view({1, 10})},
      {"loss_mask", torch::tensor({0, 0, 0, 1, 1, 1, 0, 1, 1, 0}).view({1, 10}).to(torch::kByte)},
      {"anchors", torch::tensor({3, 7, 5}, torch::kLong).view({1, 3})},
      {"keep", torch::tensor({1, 1, 0}).view({1, 3}).to(torch::kByte)}};
  const auto output = run(
      input, {"blocks", "--drafter=" + fixture("drafter/full").string(), "--loss.decay_gamma=7"});
  const auto row = [&](const char* name, int64_t n) { return output.tensor(name)[0][n]; };
  const auto ids = [](std::vector<int64_t> values) { return torch::tensor(values, torch::kLong); };
  EXPECT_TRUE(row("block_ids", 0).equal(ids({14, 205, 205, 205})));
  EXPECT_TRUE(row("block_ids", 1).equal(ids({18, 205, 205, 205})));
  EXPECT_TRUE(row("positions", 0).equal(ids({3, 4, 5, 6})));
  EXPECT_TRUE(row("positions", 1).equal(ids({7, 8, 9, 10})));
  EXPECT_TRUE(row("labels", 0).equal(ids({14, 15, 16, 17})));
  EXPECT_TRUE(row("labels", 1).equal(ids({18, 19, 20, 20})));
  EXPECT_TRUE(row("teacher_rows", 0).equal(ids({-1, 3, 4, -1})));
  EXPECT_TRUE(row("teacher_rows", 1).equal(ids({-1, 7, -1, -1})));
  const auto decay = static_cast<float>(std::exp(-1.0 / 7));
  EXPECT_TRUE(row("weights", 0).equal(torch::tensor({0.0F, 1.0F, decay, 0.0F})));
  EXPECT_TRUE(row("weights", 1).equal(torch::tensor({0.0F, 1.0F, 0.0F, 0.0F})));
  // keep = 0: all ids the mask token, positions 0 .. K-1, no weights, no teacher, nothing visible.
  EXPECT_TRUE(row("block_ids", 2).equal(ids({205, 205, 205, 205})));
  EXPECT_TRUE(row("positions", 2).equal(ids({0, 1, 2, 3})));
  EXPECT_TRUE(row("teacher_rows", 2).equal(ids({-1, -1, -1, -1})));
  EXPECT_EQ(row("weights", 2).abs().max().item<double>(), 0);
  EXPECT_EQ(output.tensor("mask_full")[0].narrow(0, 8, 4).sum().item<int64_t>(), 0);
}

TEST_F(Probe, WritesTheLossAndGradientsOfADrafter) {
  for (const std::string drafter : {"drafter/full", "drafter/sliding"}) {
    const auto file = golden(drafter + "/expected.safetensors");
    const auto output =
        run(fixture(drafter + "/expected.safetensors"),
            Arguments{
                "drafter", "--grad", "--loss.kl_weight=0", "--loss.cap_weight=0",
                "--loss.decay_gamma=10"} +
                use("targets/qwen3-tiny", drafter));
    expect_kind(output.tensor("hidden"), {2, 16, 64}, torch::kFloat);
    for (const char* name : {"loss", "weight_sum", "accuracy"})
      expect_kind(output.tensor(name), {1}, torch::kFloat);
    const double expected = file.tensor("dflash.gamma10.loss").item<double>();
    EXPECT_NEAR(output.tensor("loss").item<double>(), expected, 1e-5 * expected);
    int64_t compared = 0;
    for (const std::string& name : output.names()) {
      if (name.rfind("grad.", 0) != 0) continue;
      EXPECT_LE(
          relative_difference(output.tensor(name), file.tensor("dflash.gamma10." + name)), 1e-4)
          << name;
      ++compared;
    }
    EXPECT_EQ(compared, 25);
  }
}

TEST_F(Probe, ComputesTheStatesThatItIsNotGiven) {
  const auto file = golden("drafter/full/expected.safetensors");
  NamedTensors input;
  for (const char* name : {"input_ids", "loss_mask", "anchors", "keep"})
    input.emplace_back(name, file.tensor(name));
  const Arguments arguments =
      Arguments{"drafter", "--loss.cap_weight=0"} + use("targets/qwen3-tiny", "drafter/full");
  const double ce =
      run(input, arguments + Arguments{"--loss.kl_weight=0"}).tensor("loss").item<double>();
  const double both =
      run(input, arguments + Arguments{"--loss.kl_weight=1"}).tensor("loss").item<double>();
  EXPECT_GT(both, ce + 1e-3);
  EXPECT_FALSE(SafetensorsReader::open_file(folder / "output").has("grad.fc.weight"));
}

TEST_F(Probe, GivesZerosWhenNothingIsSupervised) {
  const auto file = golden("drafter/full/expected.safetensors");
  const auto output =
      run({{"input_ids", file.tensor("input_ids")},
           {"loss_mask", torch::zeros({2, 24})},
           {"anchors", file.tensor("anchors")},
           {"keep", file.tensor("keep")}},
          Arguments{"drafter", "--grad"} + use("targets/qwen3-tiny", "drafter/full"));
  for (const char* name : {"loss", "weight_sum", "accuracy", "grad.fc.weight", "grad.norm.weight"})
    EXPECT_EQ(output.tensor(name).abs().max().item<double>(), 0) << name;
}

TEST_F(Probe, WritesTheLossOfTheReferenceInFloat64) {
  const auto file = golden("loss/expected.safetensors");
  const NamedTensors input = {
      {"hidden", file.tensor("hidden")},
      {"lm_head", file.tensor("lm_head")},
      {"labels", file.tensor("targets")},
      {"weights", file.tensor("weights")},
      {"teacher_hidden", file.tensor("teacher_hidden")}};
  for (const char* method : {"fused", "full"}) {
    const auto output =
        run(input, {"loss", "--dtype=float64", "--loss.kl_weight=0.15", "--loss.cap_weight=0.1",
                    std::string("--loss.method=") + method});
    const auto is_used = (file.tensor("weights") > 0).to(torch::kDouble);
    for (const char* name : {"ce", "kl", "cap", "per_row"})
      expect_kind(output.tensor(name), {9}, torch::kDouble);
    EXPECT_LE(max_difference(output.tensor("ce"), file.tensor("ce.per_position") * is_used), 1e-9);
    EXPECT_LE(max_difference(output.tensor("kl"), file.tensor("kl.per_position") * is_used), 1e-9);
    EXPECT_LE(
        max_difference(output.tensor("cap"), file.tensor("cap.per_position") * is_used), 1e-9);
    EXPECT_LE(
        max_difference(output.tensor("per_row"), file.tensor("all.per_position") * is_used), 1e-9);
    EXPECT_LE(max_difference(output.tensor("loss"), file.tensor("all.loss")), 1e-9);
    EXPECT_LE(max_difference(output.tensor("dhidden"), file.tensor("all.dhidden")), 1e-9);
  }
}

TEST_F(Probe, WritesStatisticsOfABfloat16LossInFloat32) {
  const auto output =
      run({{"hidden", torch::ones({2, 4})},
           {"lm_head", torch::ones({3, 4})},
           {"labels", torch::zeros({2}, torch::kLong)},
           {"weights", torch::ones({2})}},
          {"loss", "--dtype=bfloat16", "--loss.kl_weight=0"});
  EXPECT_EQ(output.tensor("dhidden").scalar_type(), torch::kBFloat16);
  for (const char* name : {"ce", "kl", "cap", "per_row", "loss"})
    EXPECT_EQ(output.tensor(name).scalar_type(), torch::kFloat);
  EXPECT_NEAR(output.tensor("ce")[0].item<double>(), std::log(3.0), 1e-6);
}

TEST_F(Probe, WritesTheDraftTreeOfLogits) {
  const auto logits = golden("ddtree/logits-2.safetensors").tensor("logits");
  const auto cases = formats::read_json_file(fixture("ddtree/expected.json"));
  const auto& item = cases[7];
  ASSERT_EQ(item.at("seed").get<int>(), 2);
  const auto output =
      run({{"logits", logits}}, {"tree", fmt::format("--budget={}", item.at("budget").get<int>())});
  for (const char* name : {"tokens", "depths", "parents"})
    EXPECT_TRUE(output.tensor(name).equal(
        torch::tensor(item.at(name).get<std::vector<int64_t>>(), torch::kLong)))
        << name;
  const auto none = run({{"logits", logits}}, {"tree", "--budget=0"});
  for (const char* name : {"tokens", "depths", "parents"})
    expect_kind(none.tensor(name), {0}, torch::kLong);
}

TEST_F(Probe, DecodesAsTheReferenceLoop) {
  const auto cases = formats::read_json_file(fixture("decode/expected.json"));
  for (const size_t i : {3U}) {
    const auto prompt = cases[i].at("prompt").get<std::vector<int64_t>>();
    const auto output =
        run({{"prompt", torch::tensor(prompt, torch::kLong)}},
            Arguments{
                "decode", "--method=chain", "--eval.max_new_tokens=40", "--eval.ignore_stop=true"} +
                use("decode/target", "decode/drafter"));
    const auto as_ids = [&](const char* key) {
      return torch::tensor(cases[i].at(key).get<std::vector<int64_t>>(), torch::kLong);
    };
    EXPECT_TRUE(output.tensor("output").equal(as_ids("output")));
    EXPECT_TRUE(output.tensor("acceptance_lengths").equal(as_ids("acceptance_lengths")));
  }
}

TEST_F(Probe, DecodesATreeToTheSameOutput) {
  const auto item = formats::read_json_file(fixture("decode/expected.json"))[3];
  const auto prompt = item.at("prompt").get<std::vector<int64_t>>();
  const auto output =
      run({{"prompt", torch::tensor(prompt, torch::kLong)}},
          Arguments{
              "decode", "--method=tree", "--eval.tree_budget=60", "--eval.max_new_tokens=40",
              "--eval.ignore_stop=true"} +
              use("decode/target", "decode/drafter"));
  const auto expected = item.at("output").get<std::vector<int64_t>>();
  EXPECT_TRUE(output.tensor("output").equal(torch::tensor(expected, torch::kLong)));
  const auto rounds = static_cast<int64_t>(item.at("acceptance_lengths").size());
  EXPECT_LT(output.tensor("acceptance_lengths").size(0), rounds);
}

}  // namespace
}  // namespace draftsmith::app
