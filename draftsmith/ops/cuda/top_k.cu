// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/cuda/block.cuh"
#include "draftsmith/ops/cuda/kernels.h"
#include "draftsmith/ops/cuda/top_k.cuh"

namespace draftsmith::ops::cuda {

void compute_top_k(const TopKParams& params, Stream stream) {
  CudaMachine machine(stream);
  run_top_k(machine, params);
}

}  // namespace draftsmith::ops::cuda
