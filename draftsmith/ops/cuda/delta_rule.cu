// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/cuda/delta_rule.h"

#include "draftsmith/ops/cuda/block.cuh"
#include "draftsmith/ops/cuda/delta_chunks.cuh"
#include "draftsmith/ops/cuda/delta_walk.cuh"

namespace draftsmith::ops::cuda {

void compute_delta_chunks(const DeltaChunkParams& params, void* stream) {
  CudaMachine machine(stream);
  run_delta_chunks(machine, params);
}

void compute_delta_walk(const DeltaWalkParams& params, void* stream) {
  CudaMachine machine(stream);
  run_delta_walk(machine, params);
}

}  // namespace draftsmith::ops::cuda
