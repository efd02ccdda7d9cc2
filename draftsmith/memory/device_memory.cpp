// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/memory/device_memory.h"

#include <c10/core/AllocatorConfig.h>

#include "draftsmith/memory/host_allocator.h"
#include "draftsmith/ops/cuda/devices.h"

namespace draftsmith::memory {

int64_t peak_bytes(torch::Device device) {
  return device.is_cpu() ? host_bytes().peak : ops::cuda::device_bytes(device).peak;
}

void limit_bytes(torch::Device device, int64_t limit) {
  if (device.is_cpu()) return limit_host_bytes(limit);
  ops::cuda::limit_device_bytes(device, limit);
}

void use_expandable_segments() {
  if (!c10::CachingAllocator::getAllocatorSettings().empty()) return;
  c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
}

}  // namespace draftsmith::memory
