// SPDX-License-Identifier: Apache-2.0
// In builds with CUDA; unavailable.cpp stands in elsewhere.
#include "draftsmith/ops/cuda/stage.h"

#include <nvtx3/nvToolsExt.h>

namespace draftsmith::ops::cuda {

void mark_stage(const char* name) {
  thread_local bool has_stage = false;
  if (has_stage) nvtxRangePop();
  has_stage = name != nullptr;
  if (has_stage) nvtxRangePushA(name);
}

}  // namespace draftsmith::ops::cuda
