// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <torch/types.h>

#include "draftsmith/ops/cuda/block_attention.h"
#include "draftsmith/ops/cuda/delta_rule.h"
#include "draftsmith/ops/kernels.h"

/// Checks of GPU kernels that run wherever kernels do: in the ordinary tests on the host runner,
/// with several seeds, and in tools/device_check on a GPU, where there is no GoogleTest.
namespace draftsmith::testing {

/// Where kernels run.
class KernelPlace {
 public:
  virtual ~KernelPlace() = default;

  /// Where tensors must be whose pointers a kernel gets.
  virtual torch::Device device() const = 0;

  virtual void run(const ops::RmsNormParams& params) = 0;
  virtual void run(const ops::RmsNormGradientParams& params) = 0;
  virtual void run(const ops::RotaryParams& params) = 0;
  virtual void run(const ops::SwigluParams& params) = 0;
  virtual void run(const ops::TopKParams& params) = 0;
  virtual void run(const ops::TeacherRowsParams& params) = 0;
  virtual void run(const ops::HeadRowsParams& params) = 0;
  virtual void run(const ops::cuda::BlockAttentionParams& params) = 0;
  virtual void run(const ops::cuda::BlockAttentionGradientParams& params) = 0;
  virtual void run(const ops::DeltaChunkParams& params) = 0;
  virtual void run(const ops::cuda::DeltaWalkParams& params) = 0;
};

/// The kernels of the CPU, which the others are compared with.
class CpuPlace : public KernelPlace {
 public:
  torch::Device device() const override { return torch::kCPU; }
  void run(const ops::RmsNormParams& params) override { compute_rms_norm(params); }
  void run(const ops::RmsNormGradientParams& params) override { compute_rms_norm_gradient(params); }
  void run(const ops::RotaryParams& params) override { compute_rotary(params); }
  void run(const ops::SwigluParams& params) override { compute_swiglu(params); }
  void run(const ops::TopKParams& params) override { compute_top_k(params); }
  void run(const ops::TeacherRowsParams& params) override { compute_teacher_rows(params); }
  void run(const ops::HeadRowsParams& params) override { compute_head_rows(params); }
  // These are compared with definitions in float64 instead.
  void run(const ops::cuda::BlockAttentionParams&) override {}
  void run(const ops::cuda::BlockAttentionGradientParams&) override {}
  void run(const ops::DeltaChunkParams&) override {}
  void run(const ops::cuda::DeltaWalkParams&) override {}
};

struct KernelCheck {
  const char* name;  // a sentence
  void (*run)(KernelPlace& place);
};

std::vector<KernelCheck> lm_head_loss_checks();
std::vector<KernelCheck> norm_checks();
std::vector<KernelCheck> elementwise_checks();  // rotary and SwiGLU
std::vector<KernelCheck> top_k_checks();
std::vector<KernelCheck> block_attention_checks();
std::vector<KernelCheck> delta_rule_checks();

/// All of them.
std::vector<KernelCheck> kernel_checks();

/// Errors: std::runtime_error with `what` unless `is_right`.
void require(bool is_right, const std::string& what);

/// Errors: std::runtime_error unless |got - wanted| <= absolute + relative |wanted| everywhere.
void require_close(
    const torch::Tensor& got,
    const torch::Tensor& wanted,
    double relative,
    double absolute,
    const std::string& what);

/// Errors: std::runtime_error unless both hold the same bits.
void require_same(const torch::Tensor& got, const torch::Tensor& wanted, const std::string& what);

/// Errors: std::runtime_error unless all but 3 % and 2 of the bfloat16 values are the same. So they
/// are rounded at the same places on the way, though a few roundings fall the other way.
void require_roundings(
    const torch::Tensor& got,
    const torch::Tensor& wanted,
    const std::string& what);

/// One rounding of the storage that falls the other way, because sums have another order; for types
/// without rounding of their own, what sums of some thousand terms lose.
double rounding_of(torch::ScalarType dtype);

}  // namespace draftsmith::testing
