// SPDX-License-Identifier: Apache-2.0
#include "tests/ops/cuda/host_place.h"

#include "draftsmith/ops/cuda/block_attention_gradient.cuh"
#include "draftsmith/ops/cuda/delta_chunks.cuh"
#include "draftsmith/ops/cuda/delta_walk.cuh"
#include "draftsmith/ops/cuda/lm_head_loss.cuh"
#include "draftsmith/ops/cuda/rms_norm.cuh"
#include "draftsmith/ops/cuda/rotary.cuh"
#include "draftsmith/ops/cuda/swiglu.cuh"
#include "draftsmith/ops/cuda/top_k.cuh"

#include "tests/support/host_runner.h"

namespace draftsmith::testing {
namespace {

class HostPlace : public KernelPlace {
 public:
  explicit HostPlace(uint64_t seed) : machine_(seed) {}
  torch::Device device() const override { return torch::kCPU; }

  void run(const ops::RmsNormParams& params) override { ops::cuda::run_rms_norm(machine_, params); }
  void run(const ops::RmsNormGradientParams& params) override {
    const auto blocks = ops::cuda::cut_norm_rows(params.rows).blocks;
    std::vector<double> partial(static_cast<size_t>(blocks * params.width));
    ops::cuda::run_rms_norm_gradient(machine_, params, partial.data());
  }
  void run(const ops::RotaryParams& params) override { ops::cuda::run_rotary(machine_, params); }
  void run(const ops::SwigluParams& params) override { ops::cuda::run_swiglu(machine_, params); }
  void run(const ops::TopKParams& params) override { ops::cuda::run_top_k(machine_, params); }
  void run(const ops::TeacherRowsParams& params) override {
    ops::cuda::run_teacher_rows(machine_, params);
  }
  void run(const ops::HeadRowsParams& params) override {
    ops::cuda::run_head_rows(machine_, params);
  }
  void run(const ops::cuda::BlockAttentionParams& params) override {
    ops::cuda::run_block_attention(machine_, params);
  }
  void run(const ops::cuda::BlockAttentionGradientParams& params) override {
    ops::cuda::run_block_attention_gradient(machine_, params);
  }
  void run(const ops::DeltaChunkParams& params) override {
    ops::cuda::run_delta_chunks(machine_, params);
  }
  void run(const ops::cuda::DeltaWalkParams& params) override {
    ops::cuda::run_delta_walk(machine_, params);
  }

 private:
  HostMachine machine_;
};

}  // namespace

std::unique_ptr<KernelPlace> make_host_place(uint64_t seed) {
  return std::make_unique<HostPlace>(seed);
}

}  // namespace draftsmith::testing
