// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "draftsmith/base/error.h"
#include "draftsmith/memory/host_allocator.h"
#include "draftsmith/memory/planned_run.h"

#include "bench/shaped_run.h"
#include "tests/support/reference.h"

namespace draftsmith::train {
namespace {

using bench::ShapedRun;
using bench::ShapeSizes;
using memory::MemoryPlan;

struct PlannedMemory : ::testing::TestWithParam<ShapeSizes> {
  static void SetUpTestSuite() { memory::install_host_allocator(); }
  void TearDown() override { memory::limit_host_bytes(0); }

  memory::StepShape shape = bench::make_shape(GetParam());

  std::optional<MemoryPlan> find_plan(int64_t budget) const {
    try {
      return memory::choose_plan(shape, {}, budget);
    } catch (const DeviceError&) {
      return std::nullopt;
    }
  }
  /// To the byte.
  int64_t smallest_accepted() const {
    int64_t refused = 0, accepted = int64_t{1} << 40;
    while (accepted - refused > 1) {
      const int64_t middle = (refused + accepted) / 2;
      (find_plan(middle) ? accepted : refused) = middle;
    }
    return accepted;
  }
};

/// Two steps as planned, the second while a checkpoint's copy of the state exists: the peak of
/// tensor bytes, lm_head left out, and what is planned beside tensors.
int64_t run_as_planned(const MemoryPlan& plan, int64_t budget, Anchors anchors) {
  const int64_t before = memory::host_bytes().live;
  ShapedRun run(plan.shape, torch::kCPU, anchors);
  const int64_t others = before + run.lm_head_bytes();
  memory::reset_host_peak();
  if (budget > 0) memory::limit_host_bytes(others + budget - plan.beside_tensors());
  run.run_step();
  const auto copies = run.copy_state();
  run.run_step();
  memory::limit_host_bytes(0);
  EXPECT_LE(memory::host_bytes().scratch_peak, plan.scratch());
  return memory::host_bytes().peak - others + plan.beside_tensors();
}

TEST_P(PlannedMemory, IsNeverExceededByARun) {
  const int64_t smallest = smallest_accepted();
  for (const double factor : {1.0, 1.05, 1.3, 3.0}) {
    const auto budget = static_cast<int64_t>(factor * static_cast<double>(smallest));
    const auto plan = find_plan(budget);
    ASSERT_TRUE(plan.has_value());
    for (const auto anchors : {Anchors::kSpread, Anchors::kLate})
      EXPECT_LE(run_as_planned(*plan, budget, anchors), budget) << factor;
  }
}

TEST_P(PlannedMemory, AcceptsBudgetsThatHardlySuffice) {
  const int64_t smallest = smallest_accepted();
  // The scratch of two threads only sometimes peaks at the same time, and a budget must do wherever
  // anchors stand: the most of several runs counts.
  int64_t needed = 0;
  for (int i = 0; i < 8 && 1.1 * static_cast<double>(needed) < static_cast<double>(smallest); ++i)
    needed = std::max(
        needed,
        run_as_planned(*find_plan(smallest), 0, i % 2 == 0 ? Anchors::kSpread : Anchors::kLate));
  EXPECT_LE(static_cast<double>(smallest), 1.1 * static_cast<double>(needed));
}

TEST(RunByPlan, TakesAsMuchInTheFirstStepAsInTheSecond) {
  memory::install_host_allocator();
  const int threads = at::get_num_threads();
  at::set_num_threads(1);  // the scratch of several only sometimes peaks at the same time
  const auto shape =
      bench::make_shape({256, 1024, 4, 2, 64, 3, 3, 4000, 256, 16, 8, 0, true, true, false, 64});
  ShapedRun run(shape);
  std::vector<int64_t> peaks;
  for (int step = 0; step < 2; ++step) {
    memory::reset_host_peak();
    run.run_step();
    peaks.push_back(memory::host_bytes().peak);
  }
  at::set_num_threads(threads);
  EXPECT_NEAR(
      static_cast<double>(peaks[0]), static_cast<double>(peaks[1]),
      0.001 * static_cast<double>(peaks[1]));
}

TEST(RunByPlan, ComparesPlannedWithMeasuredWhereMemoryRunsOut) {
  memory::install_host_allocator();
  auto shape =
      bench::make_shape({256, 1024, 4, 2, 64, 3, 3, 4000, 256, 16, 8, 0, true, true, false, 64});
  const auto plan = memory::plan_memory(shape);
  const int64_t before = memory::host_bytes().live;
  ShapedRun run(shape);
  memory::reset_host_peak();
  // Room for forward and head, but not for backward.
  ASSERT_GT(plan.backward, plan.head);
  memory::limit_host_bytes(
      before + run.lm_head_bytes() + (plan.backward + std::max(plan.head, plan.forward)) / 2);
  ::testing::internal::CaptureStderr();
  testing::expect_error<memory::OutOfMemory>(
      [&] { memory::run_by_plan(plan, torch::kCPU, [&] { run.run_step(); }); },
      {"bytes asked", " free", "the drafter's backward"});
  memory::limit_host_bytes(0);
  const std::string log = ::testing::internal::GetCapturedStderr();
  for (const char* part :
       {"planned", "measured", "the drafter's forward", "the drafter's backward", "moments"})
    EXPECT_NE(log.find(part), std::string::npos) << part << " in\n" << log;
  const auto peaks = memory::host_phase_peaks();
  for (const char* phase : {"the drafter's forward", "lm_head and loss", "the drafter's backward"})
    EXPECT_NE(log.find(memory::print_bytes(peaks.at(phase))), std::string::npos) << phase << " in\n"
                                                                                 << log;
}

// Shapes that differ in what dominates: weights, activations, the head, the scratch of attention.
INSTANTIATE_TEST_SUITE_P(
    Shapes,
    PlannedMemory,
    ::testing::Values(
        ShapeSizes{256, 1024, 4, 2, 64, 3, 3, 4000, 256, 16, 8, 0, true, true, false, 0},
        ShapeSizes{
            128, 256, 4, 2, 32, 4, 2, 3000, 2048, 96, 8, 256, true, true, false, 0, 16, true},
        ShapeSizes{256, 512, 4, 4, 64, 2, 4, 30000, 512, 48, 8, 0, false, true, false, 0, 8},
        ShapeSizes{192, 512, 6, 1, 32, 5, 1, 2000, 1024, 64, 16, 128, false, false, false, 0},
        ShapeSizes{64, 128, 2, 1, 64, 1, 1, 500, 64, 4, 4, 0, true, true, false, 0},
        ShapeSizes{64, 128, 4, 1, 32, 2, 1, 300, 2048, 24, 8, 0, true, false, false, 0},
        ShapeSizes{128, 128, 4, 4, 32, 1, 1, 1000, 4096, 64, 16, 512, false, true, false, 0},
        ShapeSizes{96, 256, 8, 2, 16, 3, 2, 700, 777, 33, 5, 64, true, true, false, 0, 4}));

ShapeSizes with_methods(ShapeSizes sizes, ops::AttentionMethod attention, ops::LossMethod loss) {
  sizes.attention = attention;
  sizes.loss = loss;
  return sizes;
}

// The same with the other methods of attention and loss.
constexpr ShapeSizes kWide{256, 512, 4, 2, 64, 2, 3, 2000, 700, 64, 8, 0, true, true, false, 0};
constexpr ShapeSizes kLong{128,  256, 4, 1,   32,    3,    2,     5000,
                           1500, 100, 6, 300, false, true, false, 0};
INSTANTIATE_TEST_SUITE_P(
    Methods,
    PlannedMemory,
    ::testing::Values(
        with_methods(kWide, ops::AttentionMethod::kGather, ops::LossMethod::kFused),
        with_methods(kLong, ops::AttentionMethod::kGather, ops::LossMethod::kRecompute),
        with_methods(kWide, ops::AttentionMethod::kDense, ops::LossMethod::kFused),
        with_methods(kLong, ops::AttentionMethod::kDense, ops::LossMethod::kFull),
        with_methods(kWide, ops::AttentionMethod::kBlock, ops::LossMethod::kFull),
        with_methods(kLong, ops::AttentionMethod::kBlock, ops::LossMethod::kRecompute)));

}  // namespace
}  // namespace draftsmith::train
