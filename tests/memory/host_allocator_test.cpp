// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/memory/host_allocator.h"

#include <gtest/gtest.h>

#include <torch/types.h>

#include "draftsmith/base/error.h"

#include "tests/support/reference.h"

namespace draftsmith::memory {
namespace {

struct HostAllocator : ::testing::Test {
  static void SetUpTestSuite() { install_host_allocator(); }
  void TearDown() override { limit_host_bytes(0); }
};

constexpr int64_t kMiB = int64_t{1} << 20;

TEST_F(HostAllocator, CountsLiveAndPeakBytes) {
  reset_host_peak();
  const auto before = host_bytes();
  {
    const auto tensor = torch::empty({4 * kMiB}, torch::kByte);
    EXPECT_EQ(host_bytes().live, before.live + 4 * kMiB);
  }
  EXPECT_EQ(host_bytes().live, before.live);
  EXPECT_GE(host_bytes().peak, before.live + 4 * kMiB);
  reset_host_peak();
  EXPECT_EQ(host_bytes().peak, host_bytes().live);
}

TEST_F(HostAllocator, RefusesWhatTheBudgetDoesNotHold) {
  const auto kept = torch::empty({2 * kMiB}, torch::kByte);
  limit_host_bytes(host_bytes().live + kMiB);
  name_host_phase("a test");
  EXPECT_NO_THROW(torch::empty({kMiB / 2}, torch::kByte));
  const int64_t live = host_bytes().live;
  testing::expect_error<DeviceError>(
      [] { torch::empty({2 * kMiB}, torch::kByte); },
      {"memory.budget", "2097152 bytes asked", "1048576 free", "a test"});
  EXPECT_EQ(host_bytes().live, live);
}

}  // namespace
}  // namespace draftsmith::memory
