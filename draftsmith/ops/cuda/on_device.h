// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/DeviceGuard.h>
#include <torch/types.h>

#include "draftsmith/ops/cuda/kernels.h"

namespace draftsmith::ops::cuda {

/// While it lives, the device of a tensor is the current one, as launches need.
/// Errors: DeviceError in a build without CUDA.
class OnDevice {
 public:
  explicit OnDevice(const torch::Tensor& tensor);

  /// What libtorch's own operations on that device are put on now.
  Stream stream() const { return stream_; }

 private:
  c10::DeviceGuard guard_;
  Stream stream_;
};

/// `host(params)`, or `device(params, stream)` for a tensor on a GPU.
template <class Params>
void run_where(
    const torch::Tensor& tensor,
    const Params& params,
    void (*host)(const Params&),
    void (*device)(const Params&, Stream)) {
  if (tensor.is_cpu()) return host(params);
  const OnDevice place(tensor);
  device(params, place.stream());
}

}  // namespace draftsmith::ops::cuda
