// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/made_up_run.h"

#include <gtest/gtest.h>

#include <iterator>

#include "draftsmith/memory/host_allocator.h"

#include "bench/shaped_run.h"

namespace draftsmith::train {
namespace {

memory::StepShape make_shape() {
  return bench::make_shape(
      {256, 1024, 4, 2, 64, 3, 3, 4000, 2048, 128, 8, 0, false, true, false, 512});
}

TEST(MadeUpRun, MeasuresForwardHeadAndBackwardOfAStep) {
  memory::install_host_allocator();
  const auto shape = make_shape();
  const auto measured = measure_step(shape, torch::kCPU);
  EXPECT_EQ(measured.shape.context_tokens, shape.context_tokens);
  for (const auto& part : {measured.forward, measured.head, measured.backward}) {
    EXPECT_GT(part.seconds, 0);
    EXPECT_NEAR(
        static_cast<double>(part.planned_bytes) / static_cast<double>(part.measured_bytes), 1,
        0.05);
  }
  EXPECT_GT(measured.backward.measured_bytes, measured.forward.measured_bytes);
}

TEST(MadeUpRun, ShrinksAShapeToWhatItMayTake) {
  const auto whole = make_shape();
  const double flops = memory::count_step_flops(whole);
  constexpr int64_t kPlenty = int64_t{1} << 40;
  EXPECT_EQ(shrink_shape(whole, kPlenty, flops).context_tokens, whole.context_tokens);

  const auto quarter = shrink_shape(whole, kPlenty, 0.3 * flops);
  EXPECT_EQ(quarter.context_tokens, whole.context_tokens / 4);
  EXPECT_EQ(quarter.blocks, whole.blocks / 4);
  EXPECT_EQ(quarter.drafter.num_layers, 3);
  EXPECT_LE(memory::count_step_flops(quarter), 0.3 * flops);

  const auto fewer_layers = shrink_shape(whole, kPlenty, flops / 100);
  EXPECT_LT(fewer_layers.drafter.num_layers, 3);
  EXPECT_EQ(std::ssize(fewer_layers.drafter.is_sliding), fewer_layers.drafter.num_layers);

  EXPECT_LT(shrink_shape(whole, int64_t{32} << 20, flops).context_tokens, whole.context_tokens);

  auto several = whole;
  several.drafters = 2;
  several.target_workers = 1;
  several.waiting_batches = 4;
  const auto alone = shrink_shape(several, kPlenty, flops);
  EXPECT_EQ(alone.drafters, 1);
  EXPECT_EQ(alone.target_workers + alone.waiting_batches, 0);
}

}  // namespace
}  // namespace draftsmith::train
