// SPDX-License-Identifier: Apache-2.0
// That the checks of steps which a GPU must pass are right themselves.
#include "tests/train/step_checks.h"

#include <gtest/gtest.h>

#include "tests/support/host_recorder.h"

namespace draftsmith::testing {
namespace {

class StepsOnTheCpu : public ::testing::TestWithParam<StepCheck> {};

TEST_P(StepsOnTheCpu, AreRight) {
  const StepPlace place{torch::kCPU, [] { return std::make_unique<HostRecorder>(); }};
  EXPECT_NO_THROW(GetParam().run(place));
}

INSTANTIATE_TEST_SUITE_P(
    Checks,
    StepsOnTheCpu,
    ::testing::ValuesIn(step_checks()),
    [](const auto& check) { return check.param.name; });

}  // namespace
}  // namespace draftsmith::testing
