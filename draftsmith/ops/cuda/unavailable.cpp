// SPDX-License-Identifier: Apache-2.0
// What stands in for the kernels in a build without CUDA.
#include "draftsmith/base/error.h"
#include "draftsmith/ops/cuda/block_attention.h"
#include "draftsmith/ops/cuda/delta_rule.h"
#include "draftsmith/ops/cuda/devices.h"
#include "draftsmith/ops/cuda/graph.h"
#include "draftsmith/ops/cuda/on_device.h"
#include "draftsmith/ops/cuda/stage.h"

namespace draftsmith::ops::cuda {
namespace {

[[noreturn]] void fail() {
  throw DeviceError(
      {.what = "CUDA kernels",
       .expected = "a build with CUDA",
       .got = "one without",
       .hint = "the preset cuda (tools/test --cuda)"});
}

}  // namespace

OnDevice::OnDevice(const torch::Tensor& tensor) : guard_(tensor.device()), stream_(nullptr) {
  fail();
}

void mark_stage(const char*) {}

int64_t count_devices() { return 0; }
bool has_peer_access(torch::Device, torch::Device) { fail(); }
int64_t free_bytes(torch::Device) { fail(); }
DeviceBytes device_bytes(torch::Device) { fail(); }
void reset_device_peak(torch::Device) { fail(); }
void limit_device_bytes(torch::Device, int64_t) { fail(); }
std::unique_ptr<Recorder> make_graph_recorder(torch::Device) { fail(); }

void compute_rms_norm(const RmsNormParams&, Stream) { fail(); }
int64_t rms_norm_partial_size(int64_t, int64_t) { fail(); }
void compute_rms_norm_gradient(const RmsNormGradientParams&, double*, Stream) { fail(); }
void compute_rotary(const RotaryParams&, Stream) { fail(); }
void compute_swiglu(const SwigluParams&, Stream) { fail(); }
void compute_top_k(const TopKParams&, Stream) { fail(); }
void compute_teacher_rows(const TeacherRowsParams&, Stream) { fail(); }
void compute_head_rows(const HeadRowsParams&, Stream) { fail(); }
void compute_block_attention(const BlockAttentionParams&, Stream) { fail(); }
void compute_block_attention_gradient(const BlockAttentionGradientParams&, Stream) { fail(); }
void compute_delta_chunks(const DeltaChunkParams&, Stream) { fail(); }
void compute_delta_walk(const DeltaWalkParams&, Stream) { fail(); }

}  // namespace draftsmith::ops::cuda
