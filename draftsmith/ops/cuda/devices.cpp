// SPDX-License-Identifier: Apache-2.0
// In builds with CUDA; unavailable.cpp stands in elsewhere.
#include "draftsmith/ops/cuda/devices.h"

#include <algorithm>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/PeerToPeerAccess.h>
#include <cuda_runtime_api.h>

namespace draftsmith::ops::cuda {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

}  // namespace

int64_t count_devices() { return c10::cuda::device_count(); }

bool has_peer_access(torch::Device from, torch::Device to) {
  return from == to || c10::cuda::get_p2p_access(from.index(), to.index());
}

int64_t free_bytes(torch::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  const auto stats = allocator::getDeviceStats(device.index());
  return static_cast<int64_t>(free) + stats.reserved_bytes[kAll].current -
         stats.allocated_bytes[kAll].current;
}

DeviceBytes device_bytes(torch::Device device) {
  const auto bytes = allocator::getDeviceStats(device.index()).allocated_bytes[kAll];
  return {bytes.current, bytes.peak};
}

void reset_device_peak(torch::Device device) { allocator::resetPeakStats(device.index()); }

void limit_device_bytes(torch::Device device, int64_t limit) {
  const c10::cuda::CUDAGuard guard(device);
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  const double share = static_cast<double>(limit) / static_cast<double>(total);
  allocator::setMemoryFraction(limit == 0 ? 1.0 : std::min(share, 1.0), device.index());
}

}  // namespace draftsmith::ops::cuda
