// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <torch/types.h>

/// What devices there are and what they can do. A build without CUDA has none.
namespace draftsmith::ops::cuda {

/// CUDA devices that this process may use.
int64_t count_devices();

/// Whether copies between two CUDA devices need not pass through the host.
bool has_peer_access(torch::Device from, torch::Device to);

/// Bytes that a CUDA device has left, those that libtorch keeps for reuse included.
int64_t free_bytes(torch::Device device);

/// Bytes of libtorch's tensors on a CUDA device.
struct DeviceBytes {
  int64_t live = 0;
  int64_t peak = 0;  // largest `live` since the last reset
};
DeviceBytes device_bytes(torch::Device device);

/// Lets `peak` start again from `live`.
void reset_device_peak(torch::Device device);

/// Lets libtorch take at most so many bytes of a CUDA device; 0 = all of them.
void limit_device_bytes(torch::Device device, int64_t limit);

}  // namespace draftsmith::ops::cuda
