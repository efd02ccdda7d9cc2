// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/sdp_backend.h"

#include "draftsmith/base/error.h"

namespace draftsmith::ops {

const char* name_of(SdpBackend backend) {
  switch (backend) {
    case SdpBackend::kMath:
      return "math";
    case SdpBackend::kFlash:
      return "flash";
    case SdpBackend::kEfficient:
      return "memory-efficient";
    case SdpBackend::kCudnn:
      return "cuDNN";
    case SdpBackend::kOther:
      return "device-specific";
  }
  return "unknown";
}

SdpBackend find_gather_backend(torch::Device device, torch::ScalarType dtype, int64_t head_dim) {
  const auto options = torch::TensorOptions(device).dtype(dtype);
  const at::AutoGradMode with_grad(true);
  const auto query = torch::zeros({1, 2, 64, head_dim}, options).set_requires_grad(true);
  const auto key = torch::zeros({1, 2, 128, head_dim}, options).set_requires_grad(true);
  const auto mask = torch::ones({1, 1, 64, 128}, options.dtype(torch::kBool));
  const int64_t chosen = at::_fused_sdp_choice(query, key, key, mask);
  constexpr SdpBackend kByNumber[] = {
      SdpBackend::kMath, SdpBackend::kFlash, SdpBackend::kEfficient, SdpBackend::kCudnn};
  return chosen >= 0 && chosen < 4 ? kByNumber[chosen] : SdpBackend::kOther;
}

void check_gather_backend(SdpBackend backend, torch::DeviceType device, bool allows_math) {
  if (device != torch::kCUDA || backend != SdpBackend::kMath || allows_math) return;
  throw DeviceError(
      {.what = "attention of blocks by gather",
       .expected = "a backend of scaled_dot_product_attention that does not keep all scores",
       .got = "the math backend",
       .where = "cuda",
       .hint = "--attention.method=block with a bfloat16 drafter and heads of 64, 128 or 256, or "
               "--attention.allow_math=true and small batches"});
}

}  // namespace draftsmith::ops
