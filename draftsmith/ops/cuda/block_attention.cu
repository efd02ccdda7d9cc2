// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/cuda/block.cuh"
#include "draftsmith/ops/cuda/block_attention_gradient.cuh"

namespace draftsmith::ops::cuda {

void compute_block_attention(const BlockAttentionParams& params, void* stream) {
  CudaMachine machine(stream);
  run_block_attention(machine, params);
}

void compute_block_attention_gradient(const BlockAttentionGradientParams& params, void* stream) {
  CudaMachine machine(stream);
  run_block_attention_gradient(machine, params);
}

}  // namespace draftsmith::ops::cuda
