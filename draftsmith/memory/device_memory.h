// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <torch/types.h>

namespace draftsmith::memory {

/// The most bytes that tensors on a device, or on the host, ever took in this process.
int64_t peak_bytes(torch::Device device);

/// Refuses tensors on a device, or on the host, beyond this many bytes; of a GPU blocks that wait for
/// reuse count too, until they are all that is left.
/// Errors, in whoever asks for such a tensor: OutOfMemory, or on a GPU c10::OutOfMemoryError.
void limit_bytes(torch::Device device, int64_t limit);

/// Lets libtorch's allocator for GPUs grow its segments instead of adding ones that the next shape
/// does not fit into: batches of many shapes then leave no holes. Before the first tensor on a
/// GPU; PYTORCH_ALLOC_CONF, where it is set, decides instead. Nothing happens on the host.
void use_expandable_segments();

}  // namespace draftsmith::memory
