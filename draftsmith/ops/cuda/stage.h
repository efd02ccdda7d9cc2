// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace draftsmith::ops::cuda {

/// Names what the calling thread does from now on, until the next name, in a profiler's time line
/// (an NVTX range); null = nothing that has a name. Does nothing in a build without CUDA.
void mark_stage(const char* name);

}  // namespace draftsmith::ops::cuda
