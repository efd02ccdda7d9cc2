// SPDX-License-Identifier: Apache-2.0
// What the planner says about the target's forward, against the counted bytes.
#include <gtest/gtest.h>

#include "draftsmith/memory/host_allocator.h"
#include "draftsmith/memory/planner.h"
#include "draftsmith/train/evaluation.h"

#include "bench/shaped_run.h"
#include "tests/train/tiny_batches.h"

namespace draftsmith::train {
namespace {

struct PlannedTarget : ::testing::TestWithParam<std::tuple<std::string, std::string, int64_t>> {
  static void SetUpTestSuite() { memory::install_host_allocator(); }
};

TEST_P(PlannedTarget, IsWithinThreePercentOfAForward) {
  const auto& [name, dtype, documents] = GetParam();
  const auto target = testing::load_target(name, dtype);
  auto settings = testing::tiny_drafter_settings();
  settings.dtype = dtype;
  const auto drafter = model::make_drafter(settings, {}, target, {}, 0);
  constexpr int64_t kRows = 4, kTokens = 4096, kBlocks = 8;
  data::SourceBatch batch;
  std::vector<int64_t> numbers;
  std::vector<data::TokenSequence> sequences;
  for (int64_t i = 0; i < kRows; ++i) {
    numbers.push_back(i);
    sequences.push_back(testing::make_sequence(kTokens, 0, static_cast<uint64_t>(i)));
  }
  batch.tokens = data::pad_sequences(sequences, numbers);
  if (documents > 1)
    batch.tokens.document_ids = torch::arange(kTokens, torch::kLong)
                                    .floor_divide(kTokens / documents)
                                    .expand({kRows, kTokens})
                                    .contiguous();
  batch.blocks = data::make_draft_blocks(
      {batch.tokens.ids, batch.tokens.mask, batch.tokens.document_ids},
      {torch::arange(kBlocks, torch::kLong).mul(100).expand({kRows, kBlocks}).contiguous(),
       torch::ones({kRows, kBlocks}, torch::kBool)},
      drafter.block_rule(0));

  memory::StepShape shape;
  shape.drafter = drafter.config();
  shape.target = target.config();
  shape.element_bytes = shape.target_element_bytes = dtype == "float32" ? 4 : 2;
  shape.context_tokens = kRows * kTokens;
  shape.blocks = kRows * kBlocks;
  shape.threads = at::get_num_threads();
  shape.product_scratch = memory::measure_product_scratch();
  memory::Ledger planned;
  memory::add_target_forward(planned, shape);

  memory::reset_host_peak();
  const int64_t before = memory::host_bytes().live;
  const auto made = pipeline::make_train_batch(
      target, std::move(batch), drafter.config().target_layer_ids, drafter.dtype());
  const auto peak = static_cast<double>(memory::host_bytes().peak - before);
  EXPECT_NEAR(static_cast<double>(planned.peak()) / peak, 1, 0.03);
  const auto left = static_cast<double>(memory::host_bytes().live - before);
  EXPECT_NEAR(static_cast<double>(planned.live()) / left, 1, 0.03);
}

std::string name_of(const ::testing::TestParamInfo<PlannedTarget::ParamType>& info) {
  const auto& [name, dtype, documents] = info.param;
  return testing::short_name(name) + "_" + dtype + (documents > 1 ? "_packed" : "");
}

INSTANTIATE_TEST_SUITE_P(
    Targets,
    PlannedTarget,
    ::testing::Combine(
        ::testing::Values("targets/llama-tiny", "targets/qwen3-tiny", "targets/qwen3_5-tiny"),
        ::testing::Values("float32", "bfloat16"),
        ::testing::Values(1, 3)),
    name_of);

/// In float32: the sums of a bfloat16 product are the library's, and no part of what is compared.
TEST(PlannedEvaluation, IsWithinThreePercentOfAForwardWithoutGradients) {
  memory::install_host_allocator();
  const auto shape = bench::make_shape(
      {256, 4096, 4, 2, 64, 3, 3, 8000, 2048, 128, 8, 0, false, true, false, 1024});
  const auto plan = memory::plan_memory(shape);
  const bench::ShapedRun run(shape);
  memory::reset_host_peak();
  const int64_t before = memory::host_bytes().live;
  const auto batch = run.make_batch();
  run_micro_step(run.drafter(), run.lm_head(), batch, run.loss(), /*needs_gradients=*/false);
  const auto peak = static_cast<double>(memory::host_bytes().peak - before);
  EXPECT_NEAR(static_cast<double>(plan.evaluation - plan.state) / peak, 1, 0.03);
}

}  // namespace
}  // namespace draftsmith::train
