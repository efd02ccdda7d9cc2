// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/memory/device_memory.h"

#include <gtest/gtest.h>

#include <c10/core/AllocatorConfig.h>

#include "draftsmith/memory/host_allocator.h"

namespace draftsmith::memory {
namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;

TEST(DeviceMemory, IsLimitedOnTheHost) {
  install_host_allocator();
  limit_bytes(torch::kCPU, host_bytes().live + (1 << 20));
  EXPECT_THROW(torch::empty({2 << 20}, torch::kByte), OutOfMemory);
  limit_bytes(torch::kCPU, 0);
  EXPECT_NO_THROW(torch::empty({2 << 20}, torch::kByte));
}

TEST(DeviceMemory, HasExpandableSegmentsUnlessTheUserSaysOtherwise) {
  EXPECT_FALSE(AcceleratorAllocatorConfig::use_expandable_segments());
  use_expandable_segments();
  EXPECT_TRUE(AcceleratorAllocatorConfig::use_expandable_segments());
  c10::CachingAllocator::setAllocatorSettings("expandable_segments:False");
  use_expandable_segments();
  EXPECT_FALSE(AcceleratorAllocatorConfig::use_expandable_segments());
}

}  // namespace
}  // namespace draftsmith::memory
