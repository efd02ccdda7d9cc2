// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/trainer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "draftsmith/base/error.h"
#include "draftsmith/train/checkpoint_list.h"

#include "tests/support/reference.h"
#include "tests/train/tiny_run.h"

namespace draftsmith::train {
namespace {

namespace fs = std::filesystem;
using testing::make_trainer;
using testing::read_metrics;
using testing::RunOptions;
using testing::TempFolder;

const model::Target& tiny_target() {
  static const auto target = testing::load_target("targets/qwen3-tiny");
  return target;
}

void expect_equal_weights(const model::Drafter& left, const model::Drafter& right) {
  for (size_t i = 0; i < left.parameters().size(); ++i)
    EXPECT_TRUE(left.parameters()[i].second.equal(right.parameters()[i].second))
        << left.parameters()[i].first;
}

/// F10: an unbroken run of 15 batches, and one that goes on after batch 8 (the third of the
/// second epoch) from a checkpoint in another process's shoes: new drafter, new optimizer.
void expect_resumed_run_equals_unbroken(const std::string& dtype, int64_t accumulation) {
  const TempFolder folder;
  const auto dataset = testing::write_ten_sequences(folder);
  const int64_t stop = 8 / accumulation;
  RunOptions options{
      .out = (folder / "unbroken").string(),
      .dtype = dtype,
      .accumulation = accumulation,
      .save_every = stop};
  const auto unbroken = make_trainer(tiny_target(), dataset, options);
  EXPECT_EQ(unbroken->total_steps(), accumulation == 1 ? 15 : 8);
  unbroken->run();

  const auto checkpoint = fmt::format("checkpoints/step-{}", stop);
  fs::create_directories(folder / "resumed/checkpoints");
  fs::copy(folder / "unbroken" / checkpoint, folder / "resumed" / checkpoint);
  fs::copy(folder / "unbroken/metrics.jsonl", folder / "resumed/metrics.jsonl");
  options.out = (folder / "resumed").string();
  options.drafter_seed = 99;
  const auto resumed = make_trainer(tiny_target(), dataset, options);
  resumed->resume(folder / "resumed" / checkpoint);
  resumed->run();

  expect_equal_weights(resumed->drafter(), unbroken->drafter());
  const auto last = fmt::format("checkpoints/step-{}", unbroken->total_steps());
  for (const char* file : {"optimizer.safetensors", "model.safetensors", "config.json"})
    EXPECT_EQ(
        read_file(folder / "resumed" / last / file), read_file(folder / "unbroken" / last / file))
        << file;
  for (const char* file : {"export/model.safetensors", "export/config.json"})
    EXPECT_EQ(read_file(folder / "resumed" / file), read_file(folder / "unbroken" / file)) << file;

  const auto expected = read_metrics(folder / "unbroken");
  const auto metrics = read_metrics(folder / "resumed");
  ASSERT_EQ(metrics.size(), static_cast<size_t>(unbroken->total_steps()));
  for (size_t i = 0; i < metrics.size(); ++i) {
    EXPECT_EQ(metrics[i].at("step"), static_cast<int64_t>(i) + 1);
    for (const char* key : {"loss", "grad_norm", "lr", "accuracy_by_slot"})
      EXPECT_EQ(metrics[i].at(key), expected[i].at(key)) << i << " " << key;
  }
  // The run must have moved after the checkpoint, or all of this would be empty.
  const auto at_stop =
      model::Drafter::load(folder / "unbroken" / checkpoint, unbroken->drafter().dtype());
  EXPECT_FALSE(at_stop.parameters()[0].second.equal(unbroken->drafter().parameters()[0].second));
}

TEST(Trainer, ResumesBitForBit) { expect_resumed_run_equals_unbroken("float32", 1); }
TEST(Trainer, ResumesBitForBitWithAccumulation) {
  expect_resumed_run_equals_unbroken("float32", 2);
}
TEST(Trainer, ResumesBitForBitInBfloat16) { expect_resumed_run_equals_unbroken("bfloat16", 1); }
TEST(Trainer, ResumesBitForBitInBfloat16WithAccumulation) {
  expect_resumed_run_equals_unbroken("bfloat16", 2);
}

TEST(Trainer, WarmsUpWithoutChangingABitOfTheRun) {
  const TempFolder folder;
  const auto dataset = testing::write_ten_sequences(folder);
  for (const bool has_shapes : {false, true}) {
    const auto run = [&](const std::string& name, int warm_ups) {
      const auto trainer = make_trainer(
          tiny_target(), dataset,
          {.out = (folder / name).string(), .epochs = 1, .static_shapes = has_shapes});
      std::vector<torch::Tensor> first;
      for (const auto& [key, weight] : trainer->drafter().parameters())
        first.push_back(weight.detach().clone());
      for (; warm_ups > 1; --warm_ups)
        EXPECT_FALSE(trainer->run([] { return true; }));
      for (size_t i = 0; i < first.size(); ++i)
        EXPECT_TRUE(trainer->drafter().parameters()[i].second.equal(first[i])) << i;
      trainer->run();
      return read_file(folder / name / "checkpoints/step-5/model.safetensors") +
             read_file(folder / name / "checkpoints/step-5/optimizer.safetensors");
    };
    const std::string suffix = has_shapes ? "-shaped" : "";
    EXPECT_TRUE(run("once" + suffix, 1) == run("thrice" + suffix, 3));
  }
}

TEST(Trainer, MayChangeTheKindOfItsMastersOnResume) {
  const TempFolder folder;
  const auto dataset = testing::write_ten_sequences(folder);
  RunOptions options{.out = (folder / "plain").string(), .dtype = "bfloat16", .save_every = 5};
  const auto plain = make_trainer(tiny_target(), dataset, options);
  plain->run();
  // Split from the start, and to and fro on the way.
  for (const bool first_is_split : {true, false}) {
    options.out = (folder / (first_is_split ? "split" : "later")).string();
    options.split_masters = first_is_split;
    const auto first = make_trainer(tiny_target(), dataset, options);
    first->run();
    expect_equal_weights(first->drafter(), plain->drafter());
    options.split_masters = !first_is_split;
    const auto second = make_trainer(tiny_target(), dataset, options);
    second->resume(fs::path(options.out) / "checkpoints/step-5");
    second->run();
    expect_equal_weights(second->drafter(), plain->drafter());
  }
}

TEST(Trainer, WritesATraceWithTheStagesOfItsSteps) {
  const TempFolder folder;
  const RunOptions options{.out = (folder / "run").string(), .epochs = 1, .profile_steps = 2};
  make_trainer(tiny_target(), testing::write_ten_sequences(folder), options)->run();
  const auto trace = formats::Json::parse(read_file(folder / "run/trace.json"));
  std::map<std::string, int> counts;
  for (const auto& event : trace.at("traceEvents"))
    if (event.at("ph") == "X") ++counts[event.at("name").get<std::string>()];
  for (const char* stage :
       {"step", "reading a batch", "the target's forward", "the drafter's forward",
        "lm_head and loss", "the drafter's backward", "the optimizer's update"})
    EXPECT_EQ(counts[stage], 2) << stage;
  EXPECT_GT(counts["aten::mm"], 0);

  // A run that ends early leaves what there is.
  const RunOptions longer{.out = (folder / "longer").string(), .epochs = 1, .profile_steps = 99};
  make_trainer(tiny_target(), testing::write_ten_sequences(folder), longer)->run();
  EXPECT_TRUE(fs::exists(folder / "longer/trace.json"));
}

TEST(Trainer, WritesAllFiguresOfALoggedStep) {
  const TempFolder folder;
  const RunOptions options{.out = (folder / "run").string(), .epochs = 1};
  make_trainer(tiny_target(), testing::write_ten_sequences(folder), options)->run();
  const auto lines = read_metrics(folder / "run");
  ASSERT_EQ(lines.size(), 5U);
  for (const char* key :
       {"step", "loss", "ce", "kl", "cap", "accuracy", "accuracy_by_slot", "expected_acceptance",
        "lr", "grad_norm", "tokens_per_s", "step_ms", "exchange_ms", "peak_bytes"})
    EXPECT_TRUE(lines[0].contains(key)) << key;
  const auto value = [&](const char* key) { return lines[0].at(key).get<double>(); };
  EXPECT_NEAR(value("loss"), value("ce") + 0.15 * value("kl") + 0.1 * value("cap"), 1e-4);
  EXPECT_NEAR(value("ce"), std::log(211), 1);  // a new drafter knows next to nothing
  EXPECT_GE(value("expected_acceptance"), 1);
  EXPECT_EQ(lines[0].at("accuracy_by_slot").size(), 3U);
}

TEST(Trainer, CountsStepsOfBrokenEpochsAndAccumulation) {
  const TempFolder folder;
  const auto dataset = testing::write_ten_sequences(folder);
  const auto count = [&](double epochs, int64_t accumulation) {
    return make_trainer(tiny_target(), dataset, {.accumulation = accumulation, .epochs = epochs})
        ->total_steps();
  };
  EXPECT_EQ(count(1, 1), 5);
  EXPECT_EQ(count(0.4, 1), 2);
  EXPECT_EQ(count(2.2, 1), 11);
  EXPECT_EQ(count(1, 2), 3);
  EXPECT_EQ(count(3, 4), 4);
  EXPECT_EQ(count(0.001, 1), 1);
}

TEST(Trainer, LeavesACheckpointAndAnExportThatLoad) {
  const TempFolder folder;
  const RunOptions options{.out = (folder / "run").string(), .epochs = 1};
  const auto trainer = make_trainer(tiny_target(), testing::write_ten_sequences(folder), options);
  trainer->run();
  EXPECT_EQ(find_newest_checkpoint(folder / "run"), folder / "run/checkpoints/step-5");
  expect_equal_weights(
      model::Drafter::load(folder / "run/checkpoints/step-5", torch::kFloat), trainer->drafter());
  const auto exported = model::Drafter::load(folder / "run/export", torch::kBFloat16);
  for (size_t i = 0; i < exported.parameters().size(); ++i)
    EXPECT_TRUE(exported.parameters()[i].second.equal(
        trainer->drafter().parameters()[i].second.to(torch::kBFloat16)));
}

TEST(Trainer, ChangesEveryTensorOfTheDrafter) {
  const TempFolder folder;
  const RunOptions options{.out = (folder / "run").string(), .epochs = 1};
  const auto trainer = make_trainer(tiny_target(), testing::write_ten_sequences(folder), options);
  trainer->run();
  const auto start = testing::make_tiny_drafter(tiny_target());
  for (size_t i = 0; i < start.parameters().size(); ++i)
    EXPECT_FALSE(start.parameters()[i].second.equal(trainer->drafter().parameters()[i].second))
        << start.parameters()[i].first;
}

TEST(Trainer, StopsAfterTheStepAndGoesOnAsIfNothingHadBeen) {
  const TempFolder folder;
  const auto dataset = testing::write_ten_sequences(folder);
  RunOptions options{.out = (folder / "unbroken").string()};
  const auto unbroken = make_trainer(tiny_target(), dataset, options);
  EXPECT_TRUE(unbroken->run());

  options.out = (folder / "stopped").string();
  int asked = 0;
  const auto stopped = make_trainer(tiny_target(), dataset, options);
  EXPECT_FALSE(stopped->run([&] { return ++asked > 6; }));
  EXPECT_EQ(stopped->progress().step, 6);
  EXPECT_FALSE(fs::exists(folder / "stopped/export"));
  const auto checkpoint = find_newest_checkpoint(folder / "stopped");
  ASSERT_EQ(checkpoint, folder / "stopped/checkpoints/step-6");
  const auto resumed = make_trainer(tiny_target(), dataset, options);
  resumed->resume(*checkpoint);
  EXPECT_TRUE(resumed->run());
  expect_equal_weights(resumed->drafter(), unbroken->drafter());
  EXPECT_EQ(read_metrics(folder / "stopped").size(), 15U);
}

TEST(Trainer, EndsWithTheErrorOfASaveThatFailed) {
  const TempFolder folder;
  const RunOptions options{.out = (folder / "run").string(), .save_every = 1};
  const auto dataset = testing::write_ten_sequences(folder);
  folder.write("run/checkpoints", "a file is in the way");
  testing::expect_error<DeviceError>(
      [&] { make_trainer(tiny_target(), dataset, options)->run(); }, {"run/checkpoints"});
}

TEST(Trainer, RefusesAnythingButTwoBetas) {
  const TempFolder folder;
  data::BatchSource source(
      data::TokenDataset::open(testing::write_ten_sequences(folder), ""), {}, 211);
  TrainSettings settings;
  settings.betas = {0.9};
  testing::expect_error<ConfigError>(
      [&] {
        Trainer(
            tiny_target(), testing::make_tiny_drafter(tiny_target()), std::move(source), {},
            settings, {});
      },
      {"train.betas"});
}

}  // namespace
}  // namespace draftsmith::train
