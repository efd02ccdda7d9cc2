// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/app/program.h"

namespace draftsmith::app {
namespace {

using testing::operator+;
using testing::Arguments;
using testing::expect_refused;
using testing::fixture;
using testing::run_program;
using testing::TempFolder;

Arguments plan_reference(const Arguments& more = {}) {
  const std::string folder = std::string(DS_FIXTURES) + "/../../configs/qwen3.6-27b";
  return Arguments{
             "plan", "--config=" + folder + "/run.toml", "--target.path=" + folder + "/target"} +
         more;
}

TEST(Plan, KnowsTheReferenceCaseWithoutWeights) {
  const auto result = run_program(plan_reference({"--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto plan = formats::Json::parse(result.out);
  EXPECT_NEAR(plan["parameters"].get<double>(), 1.730e9, 0.001e9);
  EXPECT_NEAR(plan["weights_gradients_moments_bytes"].get<double>(), 20.76e9, 0.01e9);
  EXPECT_LE(plan["peak_bytes"].get<double>(), 95e9);
  // Logits of 32,768 rows; keys and values of 8,192 tokens for each of 1,024 blocks.
  EXPECT_EQ(plan["whole_logits_bytes"].get<int64_t>(), int64_t{32768} * 248320 * 2);
  EXPECT_EQ(plan["gathered_keys_bytes"].get<int64_t>(), int64_t{2} * 1024 * 8192 * 32 * 128 * 2);
}

TEST(Plan, IsATableForPeople) {
  const auto result = run_program(plan_reference());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"1.730 billion parameters", "chosen:", "20.76 GB", "whole logits"})
    EXPECT_NE(result.out.find(part), std::string::npos) << part << " in\n" << result.out;
}

TEST(Plan, PredictsTheSplitOfDevices) {
  const auto result = run_program(
      {"plan", "--measure", "--json", "--target.path=" + fixture("targets/qwen3-tiny").string(),
       "--drafter.target_layer_ids=0,2", "--drafter.mask_token_id=205", "--data.num_anchors=8",
       "--data.tokens_per_batch=512", "--pipeline.target_workers=5",
       "--pipeline.drafter_workers=3"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto plan = formats::Json::parse(result.out);
  const int64_t targets = plan["split"]["targets"], drafters = plan["split"]["drafters"];
  EXPECT_EQ(targets + drafters, 8);
  const double per_target = plan["target_seconds"], per_drafter = plan["step_seconds"];
  EXPECT_NEAR(
      plan["tokens_per_s"].get<double>(),
      512 * std::min(
                static_cast<double>(targets) / per_target,
                static_cast<double>(drafters) / per_drafter),
      1e-3 * plan["tokens_per_s"].get<double>());
}

TEST(Plan, MeasuresForwardAndBackward) {
  const TempFolder folder;
  const auto dataset = testing::write_tiny_dataset(folder);
  const Arguments settings = {
      "plan",
      "--measure",
      "--target.path=" + fixture("targets/qwen3-tiny").string(),
      "--drafter.target_layer_ids=0,2",
      "--drafter.mask_token_id=205",
      "--data.num_anchors=256",
      "--data.tokens_per_batch=4096",
      "--data.path=" + dataset.string(),
      "--drafter.intermediate_size=1024",
      "--drafter.dtype=float32",
      "--target.dtype=float32",
      "--pipeline.target_workers=0"};
  const auto result = run_program(settings + Arguments{"--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto plan = formats::Json::parse(result.out);
  const auto& measured = plan["measured"];
  EXPECT_EQ(measured["context_tokens"], 4096);
  EXPECT_EQ(measured["blocks"], 256);
  EXPECT_EQ(measured["layers"], 5);
  EXPECT_EQ(measured["scale"], 1);
  double seconds = 0;
  for (const char* part : {"forward", "head", "backward"}) {
    EXPECT_GT(measured[part]["seconds"].get<double>(), 0) << part;
    seconds += measured[part]["seconds"].get<double>();
    const double planned = measured[part]["planned_bytes"],
                 bytes = measured[part]["measured_bytes"];
    EXPECT_NEAR(planned / bytes, 1, 0.1) << part;
  }
  EXPECT_NEAR(plan["step_seconds"].get<double>(), seconds, 1e-9);
  // In turn with the target.
  const double batches = plan["batches_per_epoch"];
  EXPECT_GT(batches, 0);
  EXPECT_NEAR(
      plan["hours_per_epoch"].get<double>() * 3600,
      (seconds + plan["target_seconds"].get<double>()) * batches, 1e-6);

  const auto table = run_program(settings);
  ASSERT_EQ(table.exit_code, 0) << table.err;
  for (const char* part : {"measured on cpu", "drafter's forward", "drafter's backward", "hours"})
    EXPECT_NE(table.out.find(part), std::string::npos) << part << " in\n" << table.out;
}

TEST(Plan, RefusesWhatCannotFitAndSaysWhatWould) {
  const TempFolder folder;
  expect_refused(
      folder, plan_reference({"--memory.budget=64GiB"}), 5,
      {"memory for the run", "64.0 GiB", "--data.tokens_per_batch="});
  expect_refused(folder, plan_reference({"--memory.budget=much"}), 2, {"memory.budget", "'much'"});
}

TEST(Plan, CountsTargetWeightsThatAreConverted) {
  const auto plan = [](const Arguments& more) {
    const auto result = run_program(
        Arguments{"plan", "--json"} + testing::tiny_settings(fixture("targets/qwen3-tiny")) + more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return formats::Json::parse(result.out);
  };
  const auto mapped = plan({});  // float32 as in the files
  EXPECT_FALSE(mapped["parts"].contains("target weights"));
  const auto converted = plan({"--target.dtype=bfloat16"});
  EXPECT_EQ(
      2 * converted["parts"]["target weights"].get<int64_t>(),
      mapped["mapped_bytes"].get<int64_t>());
  EXPECT_EQ(converted["mapped_bytes"].get<int64_t>(), 0);
}

TEST(Plan, CountsWhatTheMethodsOfASettingTake) {
  const auto plan = [](const Arguments& more) {
    const auto result = run_program(
        Arguments{"plan", "--json"} + testing::tiny_settings(fixture("targets/qwen3-tiny")) +
        Arguments{"--memory.budget=100000GiB"} + more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return formats::Json::parse(result.out);
  };
  const auto block = plan({});
  for (const char* method : {"--attention.method=gather", "--attention.method=dense"})
    EXPECT_GT(plan({method})["drafter_backward_bytes"], block["drafter_backward_bytes"]) << method;
  for (const char* method : {"--loss.method=full", "--loss.method=recompute"})
    EXPECT_GT(plan({method})["head_bytes"], block["head_bytes"]) << method;
}

TEST(Plan, CountsNoTargetWhereItsStatesAreStored) {
  const TempFolder folder;
  const auto target = fixture("targets/qwen3-tiny");
  const auto dataset = testing::write_tiny_dataset(folder);
  const auto features = folder / "features";
  const auto extracted = run_program(
      {"extract", "--target.path=" + target.string(), "--data.path=" + dataset.string(),
       "--drafter.target_layer_ids=0,2", "--extract.out=" + features.string(),
       "--extract.format=fp8"});
  ASSERT_EQ(extracted.exit_code, 0) << extracted.err;
  const auto plan = [&](const std::filesystem::path& data, const Arguments& more) {
    const auto result = run_program(
        Arguments{"plan", "--json"} + testing::tiny_settings(target) +
        Arguments{"--data.path=" + data.string()} + more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return formats::Json::parse(result.out);
  };
  const auto stored = plan(features, {}), made = plan(dataset, {});
  EXPECT_LT(stored["target_forward_bytes"], made["target_forward_bytes"]);
  // Embedding and head of 211 words and the final norm.
  EXPECT_EQ(stored["mapped_bytes"], (2 * 211 + 1) * 64 * 4);
  const Arguments half = {"--target.dtype=bfloat16"};
  EXPECT_EQ(plan(features, half)["parts"]["target weights"], (2 * 211 + 1) * 64 * 2);
  EXPECT_EQ(
      2 * plan(dataset, half)["parts"]["target weights"].get<int64_t>(),
      made["mapped_bytes"].get<int64_t>());
}

TEST(Plan, StopsARunBeforeItsFolderIsMade) {
  const TempFolder folder;
  const auto dataset = testing::write_tiny_dataset(folder);
  const auto train =
      testing::train_arguments(fixture("targets/qwen3-tiny"), dataset, folder / "run");
  expect_refused(
      folder, train + Arguments{"--memory.budget=1MiB"}, 5, {"memory for the run", "1.00 MiB"});
}

TEST(Plan, HoldsARunToItsBudget) {
  const TempFolder folder;
  const auto dataset = testing::write_tiny_dataset(folder);
  int runs = 0;
  // From "just refused" upwards: what is accepted runs to its end within the budget.
  const auto expect_held = [&](int wanted, const Arguments& more) {
    int accepted = 0;
    for (int64_t budget = int64_t{2} << 20; budget < (int64_t{64} << 20) && accepted < wanted;
         budget += budget / 8) {
      const auto run = folder / fmt::format("run-{}", ++runs);
      const auto result = run_program(
          testing::train_arguments(fixture("targets/qwen3-tiny"), dataset, run, 2) +
          Arguments{fmt::format("--memory.budget={}", budget)} + more);
      if (result.exit_code == 5 && !std::filesystem::exists(run)) continue;
      EXPECT_EQ(result.exit_code, 0) << budget << ": " << result.err;
      ++accepted;
    }
    EXPECT_EQ(accepted, wanted);
  };
  expect_held(3, {});
  const Arguments few = {"--data.num_anchors=16"};
  expect_held(1, few + Arguments{"--attention.method=dense"});
  expect_held(1, few + Arguments{"--attention.method=gather", "--loss.method=full"});
}

}  // namespace
}  // namespace draftsmith::app
