// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/batch_shapes.h"

#include <gtest/gtest.h>

#include "tests/train/tiny_batches.h"
#include "tests/train/tiny_run.h"

namespace draftsmith::train {
namespace {

using pipeline::BatchShapes;
using testing::make_sequence;

TEST(BatchShapes, AreTheOnesThatLeaveTheLeastPadding) {
  const std::vector<int64_t> tokens = {100, 100, 90, 40, 38, 40};
  const auto shapes = pipeline::choose_batch_shapes(tokens, 100, 10, 2);
  EXPECT_EQ(shapes.tokens, (std::vector<int64_t>{40, 100}));
  EXPECT_EQ(shapes.blocks, (std::vector<int64_t>{3, 5, 8, 10}));
  EXPECT_NEAR(pipeline::padding_waste(shapes, tokens), 12.0 / 420, 1e-12);
  // Another epoch may have a larger batch than this one.
  EXPECT_EQ(pipeline::choose_batch_shapes(tokens, 128, 10, 2).tokens.back(), 128);
  EXPECT_EQ(pipeline::choose_batch_shapes(tokens, 100, 1, 6).blocks, (std::vector<int64_t>{1}));
}

void expect_same_step(const std::string& method) {
  const auto target = testing::load_target("targets/qwen3-tiny");
  const auto drafter = testing::make_tiny_drafter(target);
  const auto loss = testing::make_loss(10, 0.15, 0.1);
  const model::ForwardPlan plan{model::parse_attention_method(method), false};
  const auto batch =
      testing::make_batch(target, drafter, {make_sequence(20, 3, 1), make_sequence(13, 2, 2)}, 10);
  auto padded = batch;
  pipeline::pad_to_shape(padded, {{30, 64}, {4, 40}});
  ASSERT_EQ(padded.features.size(1), 64);
  ASSERT_EQ(padded.blocks.layout.keep.size(1), 40);
  ASSERT_EQ(padded.embedded.size(1), 40 * 4);
  const auto plain = run_micro_step(drafter, target.lm_head(), batch, loss, true, plan);
  const auto step = run_micro_step(drafter, target.lm_head(), padded, loss, true, plan);
  EXPECT_EQ(step.sums.blocks, plain.sums.blocks);
  EXPECT_EQ(step.sums.tokens, plain.sums.tokens);
  EXPECT_EQ(step.sums.count, plain.sums.count);
  EXPECT_EQ(step.sums.weight_sum, plain.sums.weight_sum);
  // The same float32 sums, but matrix products of other sizes may add in another order.
  EXPECT_NEAR(step.sums.loss(), plain.sums.loss(), 1e-5 * plain.sums.loss());
  for (size_t i = 0; i < plain.gradients.size(); ++i) {
    const auto difference = (step.gradients[i] - plain.gradients[i]).norm().item<double>();
    EXPECT_LE(difference, 1e-5 * plain.gradients[i].norm().item<double>() + 1e-7)
        << drafter.parameters()[i].first;
  }
}

TEST(BatchShapes, ChangeNeitherLossNorGradients) {
  for (const char* method : {"block", "gather", "dense"})
    expect_same_step(method);
}

TEST(BatchShapes, AreFewInARun) {
  const testing::TempFolder folder;
  auto settings = testing::tiny_data_settings();
  settings.static_shapes = true;
  settings.num_buckets = 2;
  data::BatchSource source(
      data::TokenDataset::open(testing::write_ten_sequences(folder), ""), settings, 211);
  const auto target = testing::load_target("targets/qwen3-tiny");
  const auto shapes = pipeline::choose_batch_shapes(source);
  ASSERT_LE(shapes.tokens.size(), 2U);
  pipeline::InlineFeed feed(
      target, std::move(source), {{4, 205, 10}, {0, 1}, torch::kFloat, shapes}, {});
  for (int i = 0; i < 15; ++i) {
    const auto batch = feed.next().value();
    EXPECT_NE(
        std::find(shapes.tokens.begin(), shapes.tokens.end(), batch.features.size(1)),
        shapes.tokens.end());
    EXPECT_NE(
        std::find(shapes.blocks.begin(), shapes.blocks.end(), batch.blocks.labels.size(1)),
        shapes.blocks.end());
  }
}

}  // namespace
}  // namespace draftsmith::train
