// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "draftsmith/ops/recording.h"

namespace draftsmith::ops::cuda {

/// Records CUDA graphs on a device, on a stream of its own; other threads may use the device, and
/// other devices, meanwhile.
/// Errors: DeviceError in a build without CUDA; c10::Error from work that cannot be captured.
std::unique_ptr<Recorder> make_graph_recorder(torch::Device device);

}  // namespace draftsmith::ops::cuda
