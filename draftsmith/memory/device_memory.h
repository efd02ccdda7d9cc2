// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <torch/types.h>

namespace draftsmith::memory {

/// The most bytes that tensors on a device, or on the host, ever took in this process.
int64_t peak_bytes(torch::Device device);

/// Lets libtorch's allocator for GPUs grow its segments instead of adding ones that the next shape
/// does not fit into: batches of many shapes then leave no holes. Before the first tensor on a
/// GPU; PYTORCH_ALLOC_CONF, where it is set, decides instead. Nothing happens on the host.
void use_expandable_segments();

}  // namespace draftsmith::memory
