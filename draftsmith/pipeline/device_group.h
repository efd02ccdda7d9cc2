// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace draftsmith::pipeline {

/// A c10d group for tensors on CUDA devices: NCCL. Connects with its first collective.
/// Errors: DeviceError in a build without CUDA.
c10::intrusive_ptr<c10d::Backend> make_device_group(
    c10::intrusive_ptr<c10d::Store> store,
    int64_t rank,
    int64_t size,
    std::chrono::milliseconds timeout);

}  // namespace draftsmith::pipeline
