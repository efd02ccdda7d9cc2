// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/step_graphs.h"

#include <gtest/gtest.h>

#include "draftsmith/pipeline/batch_shapes.h"
#include "draftsmith/train/step.h"

#include "tests/support/host_recorder.h"
#include "tests/train/tiny_batches.h"
#include "tests/train/tiny_run.h"

namespace draftsmith::train {
namespace {

using testing::HostRecorder;
using testing::make_sequence;

const model::Target& tiny_target() {
  static const auto target = testing::load_target("targets/qwen3-tiny");
  return target;
}

/// Batches of different sequences and anchors, padded to two shapes in turn.
std::vector<pipeline::TrainBatch> make_batches(const model::Drafter& drafter) {
  std::vector<pipeline::TrainBatch> batches;
  for (uint64_t i = 0; i < 5; ++i) {
    const auto length = static_cast<int64_t>(12 + i);
    auto batch = testing::make_batch(
        tiny_target(), drafter, {make_sequence(length, 3, i), make_sequence(13, 2, 7 + i)}, 10);
    pipeline::pad_to_shape(
        batch, i % 2 == 0 ? pipeline::BatchShapes{{40}, {30}} : pipeline::BatchShapes{{48}, {40}});
    batches.push_back(std::move(batch));
  }
  return batches;
}

void expect_same(const MicroStep& got, const MicroStep& wanted) {
  EXPECT_EQ(got.sums.loss_sum, wanted.sums.loss_sum);
  EXPECT_EQ(got.sums.correct, wanted.sums.correct);
  ASSERT_EQ(got.gradients.size(), wanted.gradients.size());
  for (size_t i = 0; i < got.gradients.size(); ++i)
    EXPECT_TRUE(got.gradients[i].equal(wanted.gradients[i])) << i;
}

TEST(StepGraphs, GiveTheBitsOfStepsThatAreNotRecorded) {
  for (const bool recomputes : {false, true}) {
    for (const std::string weighting : {"decay", "dpace"}) {
      const auto drafter = testing::make_tiny_drafter(tiny_target());
      auto loss = testing::make_loss(10, weighting == "decay" ? 0.15 : 0, 0);
      loss.weighting = weighting;
      const model::ForwardPlan plan{ops::AttentionMethod::kBlock, recomputes};
      int64_t num_recorded = 0;
      StepGraphs graphs(drafter, plan, std::make_unique<HostRecorder>(&num_recorded));
      for (const auto& batch : make_batches(drafter)) {
        const auto run = [&](StepGraphs* recorded) {
          return run_micro_step(
              drafter, tiny_target().lm_head(), batch, loss, true, plan, 8, {}, recorded);
        };
        expect_same(run(&graphs), run(nullptr));
        for (const auto& [name, weight] : drafter.parameters()) {
          const at::NoGradGuard no_grad;
          weight.mul_(1.01);  // replays read the weights anew
        }
      }
      EXPECT_EQ(graphs.num_shapes(), 2);
      EXPECT_EQ(num_recorded, 2 * 2) << "forward and backward of each shape, once";
    }
  }
}

TEST(StepGraphs, PassGradientsOnFromTheLastParameterToTheFirst) {
  const auto drafter = testing::make_tiny_drafter(tiny_target());
  const auto loss = testing::make_loss(10, 0.15, 0.1);
  StepGraphs graphs(drafter, {}, std::make_unique<HostRecorder>());
  const auto batch = make_batches(drafter).front();
  const auto kept =
      run_micro_step(drafter, tiny_target().lm_head(), batch, loss, true, {}, 0, {}, &graphs);
  std::vector<torch::Tensor> wanted;
  for (const auto& gradient : kept.gradients)
    wanted.push_back(gradient.clone());
  auto next = static_cast<int64_t>(wanted.size());
  const GradientSink sink = [&](size_t parameter, const torch::Tensor& gradient) {
    EXPECT_EQ(static_cast<int64_t>(parameter), --next);
    EXPECT_TRUE(gradient.equal(wanted[parameter]));
  };
  const auto passed =
      run_micro_step(drafter, tiny_target().lm_head(), batch, loss, true, {}, 0, sink, &graphs);
  EXPECT_EQ(next, 0);
  EXPECT_TRUE(passed.gradients.empty());
}

TEST(StepGraphs, AreNotUsedWithoutGradients) {
  const auto drafter = testing::make_tiny_drafter(tiny_target());
  StepGraphs graphs(drafter, {}, std::make_unique<HostRecorder>());
  run_micro_step(
      drafter, tiny_target().lm_head(), make_batches(drafter).front(),
      testing::make_loss(10, 0.15, 0.1), false, {}, 0, {}, &graphs);
  EXPECT_EQ(graphs.num_shapes(), 0);
}

/// Notes how much was recorded when the first batch is asked for.
class NotingFeed final : public pipeline::BatchFeed {
 public:
  NotingFeed(std::unique_ptr<pipeline::BatchFeed> feed, const int64_t& counted, int64_t& noted)
      : feed_(std::move(feed)), counted_(counted), noted_(noted) {}

  std::optional<pipeline::TrainBatch> next() override {
    if (noted_ < 0) noted_ = counted_;
    return feed_->next();
  }

 private:
  std::unique_ptr<pipeline::BatchFeed> feed_;
  const int64_t& counted_;
  int64_t& noted_;
};

TEST(StepGraphs, AreAllRecordedBeforeTheFirstBatch) {
  const testing::TempFolder folder;
  const auto dataset = testing::write_ten_sequences(folder);
  auto settings = testing::tiny_data_settings();
  settings.static_shapes = true;
  data::BatchSource source(data::TokenDataset::open(dataset, ""), settings, 211);
  const auto trainer = testing::make_trainer(
      tiny_target(), dataset, {.out = (folder / "run").string(), .static_shapes = true});
  const auto shapes = trainer->recipe().shapes;
  ASSERT_GT(shapes.tokens.size(), 1U);
  int64_t num_recorded = 0, num_before = -1;
  trainer->use_recorder(std::make_unique<HostRecorder>(&num_recorded));
  trainer->use_feed(std::make_unique<NotingFeed>(
      std::make_unique<pipeline::InlineFeed>(
          tiny_target(), std::move(source), trainer->recipe(), pipeline::FeedStart{}),
      num_recorded, num_before));
  trainer->run();
  EXPECT_EQ(num_before, static_cast<int64_t>(2 * shapes.tokens.size() * shapes.blocks.size()));
  EXPECT_EQ(num_recorded, num_before);
}

TEST(StepGraphs, TrainARunToTheSameBits) {
  const testing::TempFolder folder;
  const auto dataset = testing::write_ten_sequences(folder);
  for (const bool is_recorded : {false, true}) {
    const auto name = is_recorded ? "recorded" : "plain";
    const auto trainer = testing::make_trainer(
        tiny_target(), dataset,
        {.out = (folder / name).string(), .epochs = 2, .static_shapes = true});
    if (is_recorded) trainer->use_recorder(std::make_unique<HostRecorder>());
    trainer->run();
  }
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_TRUE(
        read_file(folder / "plain/checkpoints/step-10" / file) ==
        read_file(folder / "recorded/checkpoints/step-10" / file))
        << file;
}

}  // namespace
}  // namespace draftsmith::train
