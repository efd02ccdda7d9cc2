// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/cuda/block.cuh"
#include "draftsmith/ops/cuda/kernels.h"
#include "draftsmith/ops/cuda/rotary.cuh"

namespace draftsmith::ops::cuda {

void compute_rotary(const RotaryParams& params, Stream stream) {
  CudaMachine machine(stream);
  run_rotary(machine, params);
}

}  // namespace draftsmith::ops::cuda
