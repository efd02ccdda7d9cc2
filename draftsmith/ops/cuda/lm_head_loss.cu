// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/cuda/block.cuh"
#include "draftsmith/ops/cuda/kernels.h"
#include "draftsmith/ops/cuda/lm_head_loss.cuh"

namespace draftsmith::ops::cuda {

void compute_teacher_rows(const TeacherRowsParams& params, Stream stream) {
  CudaMachine machine(stream);
  run_teacher_rows(machine, params);
}

void compute_head_rows(const HeadRowsParams& params, Stream stream) {
  CudaMachine machine(stream);
  run_head_rows(machine, params);
}

}  // namespace draftsmith::ops::cuda
