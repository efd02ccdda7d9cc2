// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/memory/host_allocator.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <torch/types.h>

#include "draftsmith/base/error.h"
#include "draftsmith/memory/stage.h"

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
  const Stage stage("a test");
  EXPECT_NO_THROW(torch::empty({kMiB / 2}, torch::kByte));
  const int64_t live = host_bytes().live;
  testing::expect_error<DeviceError>(
      [] { torch::empty({2 * kMiB}, torch::kByte); },
      {"memory.budget", "2097152 bytes asked", "1048576 free", "a test"});
  EXPECT_EQ(host_bytes().live, live);
}

TEST_F(HostAllocator, SaysThatTheSystemHasNoMemory) {
  const Stage stage("a test");
  const int64_t live = host_bytes().live, peak = host_bytes().peak;
  testing::expect_error<OutOfMemory>(  // more than there are addresses
      [] { torch::empty({int64_t{1} << 47}, torch::kByte); },
      {"memory of the system", "140737488355328 bytes asked", "a test"});
  EXPECT_EQ(host_bytes().live, live);
  EXPECT_EQ(host_bytes().peak, peak);
}

TEST_F(HostAllocator, NamesThePhaseOfTheThreadThatAsks) {
  limit_host_bytes(host_bytes().live + kMiB);
  const auto expect_refused_in = [](const std::string& phase) {
    testing::expect_error<DeviceError>([] { torch::empty({2 * kMiB}, torch::kByte); }, {phase});
  };
  const Stage outer("the outer phase");
  {
    const Stage inner("the inner phase");
    expect_refused_in("the inner phase");
  }
  expect_refused_in("the outer phase");
  std::jthread([&] {
    expect_refused_in("the outer phase");  // a thread of a library is in the phase begun last
    const Stage elsewhere("another thread's phase");
    expect_refused_in("another thread's phase");
    std::jthread([&] { expect_refused_in("another thread's phase"); }).join();
  }).join();
  expect_refused_in("the outer phase");
}

TEST_F(HostAllocator, KnowsThePeaksOfPhases) {
  reset_host_peak();
  const int64_t live = host_bytes().live;
  {
    const Stage step("a step");
    const auto kept = torch::empty({kMiB}, torch::kByte);
    {
      const Stage forward("its forward");
      torch::empty({4 * kMiB}, torch::kByte);
    }
    std::jthread([] {
      const Stage stage("beside it");
      torch::empty({2 * kMiB}, torch::kByte);
    }).join();
  }
  const auto peaks = host_phase_peaks();
  EXPECT_EQ(peaks.size(), 3U);
  EXPECT_EQ(peaks.at("a step"), live + 5 * kMiB);
  EXPECT_EQ(peaks.at("its forward"), live + 5 * kMiB);
  EXPECT_EQ(peaks.at("beside it"), live + 3 * kMiB);
  reset_host_peak();
  EXPECT_TRUE(host_phase_peaks().empty());
}

TEST_F(HostAllocator, KeepsNoMoreThanTensorsTookAtOnce) {
  // Sizes that cannot take each other's blocks; the pages are never touched.
  reset_host_peak();
  for (const int64_t mebibytes : {900, 700, 500, 300, 800, 600}) {
    const auto tensor = torch::empty({mebibytes * kMiB}, torch::kByte);
    EXPECT_LE(host_bytes().live + host_bytes().idle, host_bytes().peak * 17 / 16) << mebibytes;
  }
  EXPECT_LE(host_bytes().peak, host_bytes().live + 900 * kMiB);
}

/// In bytes, of /proc/self/status.
int64_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  std::string key;
  while (status >> key && key != "VmRSS:")
    status.ignore(4096, '\n');
  int64_t kibibytes = 0;
  status >> kibibytes;
  return kibibytes * 1024;
}

TEST_F(HostAllocator, LeavesNoHolesBetweenBlocks) {
  torch::ones({host_bytes().idle}, torch::kByte);  // so that what is idle is resident too
  const int64_t resident = resident_bytes();
  const auto before = host_bytes();
  std::vector<torch::Tensor> kept;
  {
    std::vector<torch::Tensor> dropped;
    for (int i = 0; i < 64; ++i)
      (i % 2 == 0 ? kept : dropped).push_back(torch::ones({kMiB}, torch::kByte));
  }
  for (int i = 0; i < 32; ++i)
    kept.push_back(torch::ones({kMiB * 3 / 2}, torch::kByte));
  const auto after = host_bytes();
  // 80 MiB; blocks between kept ones cannot hold the larger tensors and would be 32 more.
  EXPECT_LE(
      resident_bytes() - resident, after.live + after.idle - before.live - before.idle + 8 * kMiB);
}

TEST_F(HostAllocator, TakesPagesOfOtherSizesInPlaceOfNewOnes) {
  // More than tensors of any test before take at once, in sizes that are not rounded up and fit no other.
  torch::ones({1024 * kMiB}, torch::kByte);
  const auto large = torch::empty({640 * kMiB}, torch::kByte);
  const auto small = torch::empty({384 * kMiB}, torch::kByte);
  constexpr int64_t kPage = 4096;
  for (const auto& tensor : {large, small}) {
    // New pages are zeros. What does not fill a huge page is new.
    const auto* bytes = tensor.const_data_ptr<uint8_t>();
    int64_t num_new = 0;
    for (int64_t at = 0; at < tensor.numel(); at += kPage)
      num_new += bytes[at] == 0;
    EXPECT_LE(num_new, 2 * kMiB / kPage) << tensor.numel();
  }
}

TEST_F(HostAllocator, KeepsOfTheLibrarysKernelsNotMoreThanItsCacheHolds) {
  const auto x = torch::ones({16, 64}, torch::kBFloat16);
  const auto make_products = [&](int64_t first, int64_t end) {
    for (int64_t width = first; width < end; ++width)
      torch::mm(x, torch::ones({64, width}, torch::kBFloat16));
  };
  make_products(100, 400);  // more than are kept
  const int64_t resident = resident_bytes();
  make_products(400, 800);
  // Each is a quarter of a megabyte; lists of the threads would keep all 400 twice, and some sizes differ.
  EXPECT_LE(resident_bytes() - resident, 100 * kMiB);
}

TEST_F(HostAllocator, ReusesBlocksOfAboutTheSameSize) {
  const void* first = torch::empty({64 * kMiB}, torch::kByte).data_ptr();
  EXPECT_EQ(torch::empty({63 * kMiB}, torch::kByte).data_ptr(), first);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0U);
}

}  // namespace
}  // namespace draftsmith::memory
