// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/ops/cuda/host_place.h"
#include "tests/ops/cuda/op_checks.h"

namespace draftsmith::testing {
namespace {

class KernelsOnTheHost : public ::testing::TestWithParam<KernelCheck> {};

TEST_P(KernelsOnTheHost, AreRightInEveryOrder) {
  for (const uint64_t seed : {1, 2}) {
    SCOPED_TRACE(seed);
    EXPECT_NO_THROW(GetParam().run(*make_host_place(seed)));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Checks,
    KernelsOnTheHost,
    ::testing::ValuesIn(kernel_checks()),
    [](const auto& check) { return check.param.name; });

/// That the checks which a GPU must pass are right themselves.
class OpsOnTheCpu : public ::testing::TestWithParam<OpCheck> {};

TEST_P(OpsOnTheCpu, AreRight) { EXPECT_NO_THROW(GetParam().run(torch::kCPU)); }

INSTANTIATE_TEST_SUITE_P(
    Checks,
    OpsOnTheCpu,
    ::testing::ValuesIn(op_checks()),
    [](const auto& check) { return check.param.name; });

}  // namespace
}  // namespace draftsmith::testing
