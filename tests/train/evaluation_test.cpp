// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/evaluation.h"

#include <gtest/gtest.h>

#include "draftsmith/train/checkpoint_list.h"

#include "tests/train/tiny_run.h"

namespace draftsmith::train {
namespace {

namespace fs = std::filesystem;
using testing::make_trainer;
using testing::RunOptions;
using testing::TempFolder;

const model::Target& tiny_target() {
  static const auto target = testing::load_target("targets/qwen3-tiny");
  return target;
}

TEST(Evaluation, LeavesTheWeightsAsTheyWouldHaveBeen) {
  const TempFolder folder;
  const auto dataset = testing::write_ten_sequences(folder);
  for (const std::string dtype : {"float32", "bfloat16"}) {
    RunOptions options{.out = (folder / (dtype + "-with")).string(), .dtype = dtype};
    options.held_out = 0.3;
    options.eval_every = 2;
    const auto with = make_trainer(tiny_target(), dataset, options);
    with->run();
    options.out = (folder / (dtype + "-without")).string();
    options.eval_every = 1000;
    const auto without = make_trainer(tiny_target(), dataset, options);
    without->run();
    EXPECT_GT(with->progress().best.step, 0);
    EXPECT_EQ(without->progress().best.step, -1);
    for (size_t i = 0; i < with->drafter().parameters().size(); ++i)
      EXPECT_TRUE(
          with->drafter().parameters()[i].second.equal(without->drafter().parameters()[i].second));
  }
}

TEST(Evaluation, WritesItsFiguresAndPointsToTheBestCheckpoint) {
  const TempFolder folder;
  RunOptions options{.out = (folder / "run").string(), .held_out = 0.3, .eval_every = 4};
  const auto trainer = make_trainer(tiny_target(), testing::write_ten_sequences(folder), options);
  trainer->run();
  int64_t best_step = -1;
  double best = 0;
  std::vector<int64_t> evaluated;
  for (const auto& line : testing::read_metrics(folder / "run")) {
    if (!line.contains("eval_loss")) continue;
    evaluated.push_back(line.at("step"));
    EXPECT_GT(line.at("eval_loss"), 0);
    EXPECT_EQ(line.at("eval_accuracy_by_slot").size(), 3U);
    const double acceptance = line.at("eval_expected_acceptance");
    if (best_step < 0 || acceptance > best) {
      best = acceptance;
      best_step = evaluated.back();
    }
  }
  EXPECT_EQ(evaluated.front(), 4);
  EXPECT_EQ(evaluated.back(), trainer->total_steps());
  EXPECT_EQ(trainer->progress().best.step, best_step);
  EXPECT_EQ(
      fs::canonical(folder / "run/checkpoints/best"),
      fs::canonical(checkpoint_path(folder / "run", best_step)));
}

TEST(Evaluation, ChoosesTheBestByTheAcceptanceOfTrees) {
  const TempFolder folder;
  RunOptions options{.out = (folder / "run").string(), .held_out = 0.3, .eval_every = 2};
  options.eval_method = "tree";
  options.tree_budget = 12;
  const auto trainer = make_trainer(tiny_target(), testing::write_ten_sequences(folder), options);
  trainer->run();
  int64_t best_step = -1;
  double best = 0;
  for (const auto& line : testing::read_metrics(folder / "run")) {
    EXPECT_GT(line.at("chain_expected_tokens"), 0);
    EXPECT_GT(line.at("tree_expected_tokens"), 0);
    EXPECT_GE(line.at("tree_expected_acceptance"), 1);
    if (!line.contains("eval_loss")) continue;
    EXPECT_GT(line.at("eval_chain_expected_tokens"), 0);
    const double acceptance = line.at("eval_tree_expected_acceptance");
    EXPECT_GE(acceptance, 1);
    if (best_step < 0 || acceptance > best) {
      best = acceptance;
      best_step = line.at("step");
    }
  }
  EXPECT_EQ(trainer->progress().best.step, best_step);
  EXPECT_EQ(trainer->progress().best.acceptance, best);
}

TEST(Evaluation, CountsChainsWithoutTreesToo) {
  const TempFolder folder;
  RunOptions options{.out = (folder / "run").string(), .held_out = 0.3, .eval_every = 2};
  options.tree_budget = 0;
  make_trainer(tiny_target(), testing::write_ten_sequences(folder), options)->run();
  int64_t num_evaluated = 0;
  for (const auto& line : testing::read_metrics(folder / "run")) {
    EXPECT_GT(line.at("chain_expected_tokens"), 0);
    EXPECT_FALSE(line.contains("tree_expected_tokens"));
    if (!line.contains("eval_loss")) continue;
    ++num_evaluated;
    EXPECT_GT(line.at("eval_chain_expected_tokens"), 0);
    EXPECT_FALSE(line.contains("eval_tree_expected_tokens"));
  }
  EXPECT_GT(num_evaluated, 0);
}

/// Of a random drafter, on a part of ten sequences.
MetricSums evaluate_tiny(
    const fs::path& dataset,
    const data::DataSettings& settings,
    const EvaluationOptions& options = {}) {
  const data::BatchSource source(data::TokenDataset::open(dataset, ""), settings, 211);
  auto held_out = source.held_out().value();
  const auto drafter = testing::make_tiny_drafter(tiny_target());
  const auto make_batch = [&](data::SourceBatch batch) {
    return pipeline::make_train_batch(
        tiny_target(), std::move(batch), drafter.config().target_layer_ids, drafter.dtype());
  };
  return evaluate_held_out(
             make_batch, drafter, tiny_target().lm_head(), held_out,
             testing::make_loss(10, 0.15, 0.1), options)
      .value();
}

TEST(Evaluation, ComputesAttentionAsTheRunDoes) {
  const TempFolder folder;
  const auto dataset = testing::write_ten_sequences(folder);
  const model::ForwardPlan plan{ops::AttentionMethod::kDense};
  RunOptions options{.out = (folder / "run").string(), .lr = 0, .held_out = 0.3, .eval_every = 2};
  const auto trainer = make_trainer(tiny_target(), dataset, options);
  trainer->use_plan(plan);
  trainer->run();
  auto settings = testing::tiny_data_settings();
  settings.held_out = 0.3;
  const double dense = evaluate_tiny(dataset, settings, {plan}).chain_expected_tokens();
  // They round differently; a learning rate of 0 leaves the weights as they are.
  const double block = evaluate_tiny(dataset, settings).chain_expected_tokens();
  EXPECT_NE(dense, block);
  EXPECT_NEAR(dense, block, 1e-5);
  for (const auto& line : testing::read_metrics(folder / "run")) {
    if (!line.contains("eval_loss")) continue;
    EXPECT_EQ(line.at("eval_chain_expected_tokens"), dense);
  }
}

TEST(Evaluation, EndsWithoutFiguresOnceTheRunShouldStop) {
  const TempFolder folder;
  RunOptions options{.out = (folder / "run").string(), .held_out = 0.3, .eval_every = 2};
  const auto trainer = make_trainer(tiny_target(), testing::write_ten_sequences(folder), options);
  // Asked before every step and every batch held out; there are three of these.
  int asked = 0;
  EXPECT_FALSE(trainer->run([&] { return ++asked > 3; }));
  EXPECT_EQ(trainer->progress().step, 2);
  EXPECT_EQ(trainer->progress().best.step, -1);
  EXPECT_TRUE(fs::exists(checkpoint_path(folder / "run", 2)));
  for (const auto& line : testing::read_metrics(folder / "run"))
    EXPECT_FALSE(line.contains("eval_loss"));
  // What goes on evaluates the next time that it is due.
  EXPECT_TRUE(trainer->run());
  EXPECT_GT(trainer->progress().best.step, 2);
}

TEST(Evaluation, GivesTheSameFiguresEveryTime) {
  const TempFolder folder;
  const auto dataset = testing::write_ten_sequences(folder);
  data::DataSettings settings;
  settings.held_out = 0.3;
  const auto evaluate = [&] { return evaluate_tiny(dataset, settings); };
  const auto first = evaluate();
  const auto second = evaluate();
  EXPECT_GT(first.blocks, 0);
  EXPECT_EQ(first.loss_sum, second.loss_sum);
  EXPECT_EQ(first.accepted_sum, second.accepted_sum);
  EXPECT_EQ(first.tokens, second.tokens);
}

}  // namespace
}  // namespace draftsmith::train
