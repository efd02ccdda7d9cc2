// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/cuda/block.cuh"
#include "draftsmith/ops/cuda/kernels.h"
#include "draftsmith/ops/cuda/swiglu.cuh"

namespace draftsmith::ops::cuda {

void compute_swiglu(const SwigluParams& params, Stream stream) {
  CudaMachine machine(stream);
  run_swiglu(machine, params);
}

}  // namespace draftsmith::ops::cuda
