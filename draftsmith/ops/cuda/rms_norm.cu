// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/cuda/block.cuh"
#include "draftsmith/ops/cuda/kernels.h"
#include "draftsmith/ops/cuda/rms_norm.cuh"

namespace draftsmith::ops::cuda {

void compute_rms_norm(const RmsNormParams& params, Stream stream) {
  CudaMachine machine(stream);
  run_rms_norm(machine, params);
}

int64_t rms_norm_partial_size(int64_t rows, int64_t width) {
  return cut_norm_rows(rows).blocks * width;
}

void compute_rms_norm_gradient(
    const RmsNormGradientParams& params,
    double* partial,
    Stream stream) {
  CudaMachine machine(stream);
  run_rms_norm_gradient(machine, params, partial);
}

}  // namespace draftsmith::ops::cuda
