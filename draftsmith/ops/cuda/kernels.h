// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "draftsmith/ops/kernels.h"

/// The kernels of ops/kernels.h on the current CUDA device: pointers are the device's, and the work
/// is put on `stream` (a cudaStream_t), which the host does not wait for.
/// Errors: DeviceError where a launch fails, and everywhere in a build without CUDA.
namespace draftsmith::ops::cuda {

using Stream = void*;

void compute_rms_norm(const RmsNormParams& params, Stream stream);

/// Doubles that `compute_rms_norm_gradient` needs as `partial`.
int64_t rms_norm_partial_size(int64_t rows, int64_t width);
void compute_rms_norm_gradient(const RmsNormGradientParams& params, double* partial, Stream stream);

void compute_rotary(const RotaryParams& params, Stream stream);
void compute_swiglu(const SwigluParams& params, Stream stream);

/// Entries that `compute_top_k` and `compute_head_rows` give at most.
constexpr int64_t kMaxTop = 1024;
void compute_top_k(const TopKParams& params, Stream stream);

void compute_teacher_rows(const TeacherRowsParams& params, Stream stream);
void compute_head_rows(const HeadRowsParams& params, Stream stream);

}  // namespace draftsmith::ops::cuda
