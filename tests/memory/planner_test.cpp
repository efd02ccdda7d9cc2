// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/memory/planner.h"

#include <gtest/gtest.h>

#include "draftsmith/base/error.h"
#include "draftsmith/memory/host_allocator.h"
#include "draftsmith/memory/planned_run.h"
#include "draftsmith/memory/product_kernels.h"
#include "draftsmith/memory/product_scratch.h"
#include "draftsmith/ops/product.h"

#include "tests/support/reference.h"

namespace draftsmith::memory {
namespace {

/// The reference case: the drafter of Qwen3.6-27B, 1,024 blocks of 32, 49,152 context tokens.
StepShape reference_shape() {
  StepShape shape;
  auto& d = shape.drafter;
  d.model_type = "qwen3";
  d.vocab_size = 248320;
  d.hidden_size = 5120;
  d.intermediate_size = 17408;
  d.num_layers = 5;
  d.num_heads = 32;
  d.num_kv_heads = 8;
  d.head_dim = 128;
  d.block_size = 32;
  d.target_layer_ids = {1, 16, 31, 46, 61};
  d.is_sliding.assign(5, true);
  d.sliding_window = 2048;
  auto& t = shape.target;
  static_cast<formats::TransformerConfig&>(t) = d;
  t.model_type = "qwen3";
  t.num_layers = 64;
  t.is_linear.assign(64, false);
  shape.context_tokens = 49152;
  shape.blocks = 1024;
  shape.threads = 2;
  return shape;
}

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(Planner, KnowsTheReferenceDrafter) {
  const int64_t P = count_drafter_parameters(reference_shape().drafter);
  EXPECT_NEAR(static_cast<double>(P), 1.730e9, 0.001e9);
  // bfloat16 weights and gradients, float32 moments.
  EXPECT_NEAR(static_cast<double>(12 * P), 20.76e9, 0.01e9);
}

TEST(Planner, ChoosesTheCheapestThatFits) {
  auto shape = reference_shape();
  MemorySettings settings;
  const auto rich = choose_plan(shape, settings, 1000 * kGiB);
  EXPECT_FALSE(rich.shape.recomputes_layers);
  EXPECT_EQ(rich.shape.chunk_rows, 512);
  EXPECT_EQ(rich.step_flops, rich.cheapest_flops);
  const auto poor = choose_plan(shape, settings, rich.peak() * 9 / 10);
  EXPECT_TRUE(poor.shape.recomputes_layers);
  EXPECT_GT(poor.step_flops, poor.cheapest_flops);
  settings.recompute = "layer";
  EXPECT_TRUE(choose_plan(shape, settings, 1000 * kGiB).shape.recomputes_layers);
  shape.chunk_rows = 99;
  EXPECT_EQ(choose_plan(shape, settings, 1000 * kGiB).shape.chunk_rows, 99);
}

TEST(Planner, NeverPlansBeyondTheBudget) {
  const auto shape = reference_shape();
  const MemorySettings settings;
  bool was_accepted = false;
  for (int64_t budget = 20 * kGiB; budget < 250 * kGiB; budget += budget / 50) {
    try {
      const auto plan = choose_plan(shape, settings, budget);
      EXPECT_LE(plan.peak(), budget);
      was_accepted = true;
    } catch (const DeviceError&) {
      EXPECT_FALSE(was_accepted) << "refused " << budget << " after a smaller one was accepted";
    }
  }
  EXPECT_TRUE(was_accepted);
}

TEST(Planner, SaysWhatWouldFit) {
  const auto shape = reference_shape();
  testing::expect_error<DeviceError>(
      [&] { choose_plan(shape, {}, 64 * kGiB); },
      {"memory for the run", "64.0 GiB", "--data.tokens_per_batch=", "--data.num_anchors="});
  // Not even the weights fit: nothing but a larger budget helps.
  testing::expect_error<DeviceError>(
      [&] { choose_plan(shape, {}, 4 * kGiB); }, {"--memory.budget="});
}

TEST(Planner, CountsMoreForMore) {
  const auto peak = [](auto change) {
    auto shape = reference_shape();
    shape.chunk_rows = 512;
    change(shape);
    return plan_memory(shape).drafter_step;
  };
  const auto base = peak([](StepShape&) {});
  EXPECT_GT(peak([](StepShape& s) { s.context_tokens *= 2; }), base);
  EXPECT_GT(peak([](StepShape& s) { s.blocks *= 2; }), base);
  EXPECT_GT(peak([](StepShape& s) { s.element_bytes = 4; }), base);
  EXPECT_LT(peak([](StepShape& s) { s.recomputes_layers = true; }), base);
  EXPECT_GT(peak([](StepShape& s) { s.drafter.num_layers = 6; }), base);
}

TEST(Planner, KnowsWhatSplitMastersSave) {
  auto shape = reference_shape();
  const int64_t P = count_drafter_parameters(shape.drafter);
  const auto plain = plan_memory(shape);
  shape.splits_masters = true;
  const auto split = plan_memory(shape);
  EXPECT_EQ(plain.state - split.state, 2 * P);
  // A checkpoint's copy of the state shrinks too.
  EXPECT_EQ(plain.saving - split.saving, 4 * P);
  shape.element_bytes = 4;  // float32 weights have no masters
  EXPECT_EQ(shape.master_bytes(), 0);
}

TEST(Planner, CountsTheScratchOfBfloat16Products) {
  auto shape = reference_shape();
  shape.threads = 2;
  shape.chunk_rows = 512;
  const auto plain = plan_memory(shape);
  EXPECT_EQ(plain.scratch(), 0);
  shape.product_scratch = 1000000;
  EXPECT_EQ(plan_memory(shape).scratch(), 1000000);
  EXPECT_EQ(plan_memory(shape).peak(), plain.peak() + 1000000);
  EXPECT_EQ(plan_memory(shape).drafter_step, plain.drafter_step);
  shape.threads = 8;  // each with a product of attention
  EXPECT_EQ(plan_memory(shape).scratch(), 2000000);
  shape.target_workers = 2;
  EXPECT_EQ(plan_memory(shape).scratch(), 6000000);
  shape.element_bytes = shape.target_element_bytes = 4;  // these are summed in their result
  EXPECT_EQ(plan_memory(shape).scratch(), 0);
}

TEST(Planner, CountsTheKernelsOfBfloat16Products) {
  auto shape = reference_shape();
  shape.chunk_rows = 512;
  const auto plain = plan_memory(shape);
  EXPECT_EQ(plain.kernels, 0);
  shape.product_kernel = 1000;
  const auto plan = plan_memory(shape);
  EXPECT_EQ(plan.kernels, 1000 * std::min(kMostProductKernels, count_product_kernels(shape)));
  EXPECT_EQ(plan.peak(), plain.peak() + plan.kernels);
  EXPECT_NE(print_plan(plan, kGiB).find("kernels compiled"), std::string::npos);
  shape.element_bytes = shape.target_element_bytes = 4;
  EXPECT_EQ(plan_memory(shape).kernels, 0);
}

TEST(ProductKernels, AreOfTheShapesOfAStep) {
  StepShape shape;
  auto& d = shape.drafter;
  d.vocab_size = 3000;
  d.hidden_size = 256;
  d.intermediate_size = 1024;
  d.num_layers = 3;
  d.num_heads = 4;
  d.num_kv_heads = 2;
  d.head_dim = 32;
  d.block_size = 8;
  d.target_layer_ids = {0, 1};
  d.is_sliding.assign(3, false);
  shape.context_tokens = 128;
  shape.blocks = 1;
  shape.chunk_rows = 512;
  // Two products of the features', three each of two sizes of keys, of queries, output and two of the
  // MLP's; two of the head's, one of some labels (student and teacher are as many); three of a tile.
  EXPECT_EQ(count_product_kernels(shape), 2 + 3 + 3 + 6 + 6 + 3 + 3);
  d.num_layers = 7;
  d.is_sliding.assign(7, false);
  EXPECT_EQ(count_product_kernels(shape), 26);  // layers are alike
  d.is_sliding[2] = true;
  d.sliding_window = 64;
  shape.context_tokens = 512;
  shape.blocks = 8;
  const int64_t both = count_product_kernels(shape);
  EXPECT_GT(both, 26);
  d.is_sliding[2] = false;
  EXPECT_LT(count_product_kernels(shape), both);
  shape.attention = ops::AttentionMethod::kGather;
  EXPECT_EQ(count_product_kernels(shape), 23);
  shape.element_bytes = 4;
  EXPECT_EQ(count_product_kernels(shape), 0);
}

TEST(ProductKernels, TakeAFewHundredKilobytesAtMost) {
  install_host_allocator();
  EXPECT_GE(measure_product_kernel(), 0);
  EXPECT_LE(measure_product_kernel(), int64_t{2} << 20);
}

TEST(ProductScratch, IsAtMostAFloat32CopyAndPackedOperands) {
  install_host_allocator();
  const int64_t bytes = measure_product_scratch();
  EXPECT_GE(bytes, 0);
  EXPECT_LE(bytes, 4 * ops::kProductCells + (int64_t{8} << 20));
  EXPECT_EQ(measure_product_scratch(), bytes);
}

TEST(ProductScratch, BoundsProductsOfOtherShapes) {
  install_host_allocator();
  const int64_t bytes = measure_product_scratch();
  const auto make = [](int64_t rows, int64_t columns) {
    return torch::zeros({rows, columns}, torch::kBFloat16);
  };
  for (const int64_t rows : {3, 32, 100, 700, 5000}) {
    using Sizes = std::pair<int64_t, int64_t>;
    for (const auto& [in, out] : {Sizes{64, 128}, {1000, 200}, {30, 3000}, {2000, 1500}}) {
      const auto x = make(rows, in), weight = make(out, in), gradient = make(rows, out);
      const int64_t live = host_bytes().live;
      reset_host_peak();
      ops::product(x, weight.t());
      ops::product(gradient, weight);
      ops::product(gradient.t(), x);
      EXPECT_LE(host_bytes().scratch_peak, bytes) << rows << " rows, " << in << " to " << out;
      // Tensors are counted apart.
      EXPECT_LE(host_bytes().peak - live, 2 * std::max({rows * out, rows * in, out * in}));
      EXPECT_EQ(host_bytes().scratch, 0);
    }
  }
}

TEST(Planner, CountsTheBestIdsOfTrees) {
  auto shape = reference_shape();
  shape.chunk_rows = 512;
  const auto plain = plan_memory(shape);
  shape.tree_budget = 32;
  // An id and a logarithm for every row and node, kept through backward.
  EXPECT_EQ(plan_memory(shape).drafter_step - plain.drafter_step, shape.rows() * 32 * 12);
}

TEST(Planner, PlaysAnEvaluationThatKeepsNoActivations) {
  auto shape = reference_shape();
  shape.chunk_rows = 512;
  const auto plan = plan_memory(shape);
  EXPECT_GT(plan.evaluation, plan.state);
  EXPECT_LT(plan.evaluation, plan.drafter_step);
}

TEST(Planner, LetsTargetsRunAheadOnlyWhereThatDisplacesNothing) {
  auto shape = reference_shape();
  shape.target_workers = 1;
  shape.waiting_batches = 2;
  const auto ahead = choose_plan(shape, {}, 1000 * kGiB);
  EXPECT_EQ(ahead.shape.target_workers, 1);
  const auto in_turn = run_in_turn(ahead);
  EXPECT_EQ(in_turn.shape.target_workers, 0);
  // Two batches of features wait, and a forward runs beside the step.
  Ledger forward;
  add_target_forward(forward, ahead.shape);
  EXPECT_EQ(ahead.drafter_step - in_turn.drafter_step, 2 * forward.live() + forward.peak());
  EXPECT_NE(print_plan(ahead, 1000 * kGiB).find("1 target workers run ahead"), std::string::npos);
  const auto small = choose_plan(shape, {}, ahead.peak() - 1);
  EXPECT_EQ(small.shape.target_workers, 0);
  EXPECT_EQ(small.shape.chunk_rows, in_turn.shape.chunk_rows);
  EXPECT_EQ(small.peak(), in_turn.peak());
}

TEST(Planner, DividesMastersAndMomentsAmongRanks) {
  auto shape = reference_shape();
  const int64_t P = count_drafter_parameters(shape.drafter);
  const auto whole = plan_memory(shape);
  shape.optimizer_shards = 8;
  const auto sharded = plan_memory(shape);
  // Of 12 bytes a parameter seven eighths are elsewhere.
  EXPECT_NEAR(static_cast<double>(whole.state - sharded.state), 10.5 * static_cast<double>(P), 100);
  EXPECT_EQ(sharded.drafter_step - sharded.state, whole.drafter_step - whole.state);
  EXPECT_NE(print_plan(sharded, 1000 * kGiB).find("among 8 ranks"), std::string::npos);
}

TEST(Planner, CountsEveryDrafterThatSharesTheMemory) {
  auto shape = reference_shape();
  const auto one = plan_memory(shape);
  shape.drafters = 3;
  const auto three = plan_memory(shape);
  EXPECT_GE(three.drafter_step, one.drafter_step + 2 * (one.state + 1 * kGiB));
  EXPECT_LE(three.drafter_step, 3 * one.drafter_step);
  EXPECT_NE(print_plan(three, 1000 * kGiB).find("3 drafters"), std::string::npos);
}

TEST(Planner, PrintsThePartsAndTheChoice) {
  auto shape = reference_shape();
  const auto plan = choose_plan(shape, {}, 1000 * kGiB);
  const auto text = print_plan(plan, 900 * kGiB);
  for (const char* part :
       {"1.730 billion parameters", "moments", "MLP activations", "nothing is recomputed",
        "rows of logits", "budget: 900 GiB", "training step 1", "training step 2", "evaluation",
        "while a checkpoint is written"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
}

TEST(Planner, KnowsThePeaksOfAStepsParts) {
  for (const bool recomputes : {false, true}) {
    auto shape = reference_shape();
    shape.chunk_rows = 512;
    shape.recomputes_layers = recomputes;
    const auto plan = plan_memory(shape);
    EXPECT_EQ(plan.drafter_step, std::max({plan.forward, plan.head, plan.backward}));
    for (const int64_t peak : {plan.forward, plan.head, plan.backward})
      EXPECT_GT(peak, plan.state);
    Ledger whole;
    add_state(whole, shape);
    add_target_forward(whole, shape);
    whole.restart_peak();
    add_drafter_step(whole, shape);
    EXPECT_EQ(plan.drafter_step, whole.peak());
    EXPECT_EQ(plan.saving, plan.step() + plan.snapshot);
  }
}

TEST(Planner, ComparesWithWhatWasMeasured) {
  const auto plan = choose_plan(reference_shape(), {}, 1000 * kGiB);
  const auto text = compare_with_plan(
      plan, {{"the drafter's backward", 777 * kGiB}, {"step", 800 * kGiB}}, 801 * kGiB);
  const auto row_of = [&](const std::string& name) {
    const size_t begin = text.find(name);
    EXPECT_NE(begin, std::string::npos) << name << " in\n" << text;
    return begin == std::string::npos ? "" : text.substr(begin, text.find('\n', begin) - begin);
  };
  EXPECT_NE(row_of("the drafter's backward").find(print_bytes(plan.backward)), std::string::npos);
  EXPECT_NE(row_of("the drafter's backward").find("777 GiB"), std::string::npos);
  EXPECT_NE(row_of("peak").find("801 GiB"), std::string::npos);
  EXPECT_EQ(row_of("evaluation").back(), '-');  // none was run
  EXPECT_NE(row_of("moments").find(print_bytes(plan.parts.at("moments"))), std::string::npos);
}

}  // namespace
}  // namespace draftsmith::memory
