// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "draftsmith/ops/kernels.h"

/// The gated delta rule on a CUDA device; see ops/delta_rule.h for the rule.
namespace draftsmith::ops::cuda {

/// What a walk over a tree does with the state at a node.
struct TreeStep {
  int32_t node;
  int32_t from;  // slot of the state to start from; kPreviousState, kRootState
  int32_t to;    // slot where the state after the node is kept for its other children, or kNowhere
};
constexpr int32_t kPreviousState = -1;
constexpr int32_t kRootState = -2;
constexpr int32_t kNowhere = -1;

struct DeltaWalkParams {
  Storage storage;        // of mixed and out: kBF16 or kF32
  const void* mixed;      // [B, T, 2 Hk Ek + Hv Ev]
  const float* decay;     // [B, T, Hv]
  const float* beta;      // [B, T, Hv]
  const int32_t* counts;  // [B] tokens of each row
  int64_t B, T, Hk, Hv, Ek, Ev;
  float* state;  // [B, Hv, Ek, Ev] read; for a line overwritten by the state after it
  void* out;     // [B, T, Hv, Ev]

  const TreeStep* steps = nullptr;  // [B, T] depth first; null: a line
  int64_t num_slots = 0;
  float* slots = nullptr;  // [B, num_slots, Hv, Ek, Ev] scratch
};

/// Whether there are kernels for heads of this width.
constexpr bool has_delta_rule(int64_t Ek, int64_t Ev) {
  return (Ek == 64 || Ek == 128) && Ev % 32 == 0;
}

/// On the current device; the work is put on `stream` (a cudaStream_t). All pointers are the
/// device's, the spans' too.
/// Errors: DeviceError where a launch fails, and everywhere in a build without CUDA.
void compute_delta_chunks(const DeltaChunkParams& params, void* stream);
void compute_delta_walk(const DeltaWalkParams& params, void* stream);

}  // namespace draftsmith::ops::cuda
