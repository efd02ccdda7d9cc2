// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <torch/types.h>

namespace draftsmith::ops {

/// The implementations of libtorch's scaled_dot_product_attention.
enum class SdpBackend { kMath, kFlash, kEfficient, kCudnn, kOther };

/// "math", "flash", ...
const char* name_of(SdpBackend backend);

/// The one that libtorch chooses for the calls of AttentionMethod::kGather on this device: with a
/// boolean mask, and with gradients.
SdpBackend find_gather_backend(torch::Device device, torch::ScalarType dtype, int64_t head_dim);

/// Refuses gathered attention where it would be a trap: the math backend keeps all scores of a
/// call, several times over in float32, and on a GPU that is what memory runs out of.
/// On the CPU every backend may run; on CUDA math only if `allows_math`.
/// Errors: DeviceError.
void check_gather_backend(SdpBackend backend, torch::DeviceType device, bool allows_math);

}  // namespace draftsmith::ops
