// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "draftsmith/train/step.h"

#include "tests/support/temp_folder.h"
#include "tests/train/tiny_batches.h"

namespace draftsmith::train {
namespace {

using testing::make_sequence;
using testing::TempFolder;

/// All sequences in one batch, packed or in rows of their own.
data::SourceBatch read_batch(const std::string& batching) {
  std::vector<data::TokenSequence> sequences;
  for (int64_t i = 0; i < 7; ++i)
    sequences.push_back(make_sequence(5 + 4 * i, 2, static_cast<uint64_t>(i)));
  const TempFolder folder;
  data::DataSettings settings;
  settings.path = testing::write_dataset_folder(folder, "d", sequences).string();
  settings.batching = batching;
  settings.max_length = 64;
  settings.tokens_per_batch = 640;
  auto source = data::BatchSource::open(settings, 200, {});
  return source.read({}, {4, 205, 10});
}

// One row or seven: the drafter learns the same, because no document sees another in the target,
// in the drafter or in a label.
TEST(PackedBatch, HasTheLossAndGradientsOfRowsOfTheirOwn) {
  const auto target = testing::load_target("targets/qwen3-tiny");
  const auto drafter = testing::make_tiny_drafter(target);
  const auto loss = testing::make_loss(10, 0.15, 0.1);
  const auto run = [&](const std::string& batching) {
    const auto batch = pipeline::make_train_batch(
        target, read_batch(batching), drafter.config().target_layer_ids, drafter.dtype());
    return run_micro_step(drafter, target.lm_head(), batch, loss);
  };
  const auto packed = run("pack");
  const auto alone = run("bucket");
  EXPECT_EQ(packed.sums.blocks, alone.sums.blocks);
  EXPECT_EQ(packed.sums.tokens, alone.sums.tokens);
  EXPECT_EQ(packed.sums.count, alone.sums.count);
  EXPECT_NEAR(packed.sums.weight_sum, alone.sums.weight_sum, 1e-3);
  // Float32 sums of some hundred rows in another order.
  EXPECT_NEAR(packed.sums.loss(), alone.sums.loss(), 1e-5 * alone.sums.loss());
  ASSERT_EQ(packed.gradients.size(), alone.gradients.size());
  for (size_t i = 0; i < packed.gradients.size(); ++i) {
    const auto difference = (packed.gradients[i] - alone.gradients[i]).norm().item<double>();
    EXPECT_LE(difference, 1e-4 * alone.gradients[i].norm().item<double>() + 1e-6)
        << drafter.parameters()[i].first;
  }
}

TEST(PackedBatch, IsReallyPacked) {
  EXPECT_LT(read_batch("pack").tokens.ids.size(0), 7);
  EXPECT_EQ(read_batch("bucket").tokens.ids.size(0), 7);
}

}  // namespace
}  // namespace draftsmith::train
