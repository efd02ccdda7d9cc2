// SPDX-License-Identifier: Apache-2.0
// In builds with CUDA; unavailable.cpp stands in elsewhere.
#include "draftsmith/ops/cuda/on_device.h"

#include <c10/cuda/CUDAStream.h>

namespace draftsmith::ops::cuda {

OnDevice::OnDevice(const torch::Tensor& tensor)
    : guard_(tensor.device()),
      stream_(c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream()) {}

}  // namespace draftsmith::ops::cuda
