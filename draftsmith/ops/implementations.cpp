// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/implementations.h"

#include <fmt/format.h>
#include <hwy/targets.h>

#include "draftsmith/ops/causal_attention.h"
#include "draftsmith/ops/cpu/tiles.h"
#include "draftsmith/ops/cuda/delta_rule.h"
#include "draftsmith/ops/delta_rule.h"
#include "draftsmith/ops/kernels.h"
#include "draftsmith/ops/linear.h"

namespace draftsmith::ops {
namespace {

const char* describe_half_products() {
  if (has_tiles()) return " on the tile unit (AMX)";
  if (has_half_products()) return "";
  return " (no instructions for bfloat16 here: float32 is several times faster)";
}

std::vector<std::string> describe_on_gpu(
    torch::Device device,
    torch::ScalarType dtype,
    const std::vector<int64_t>& linear_dims) {
  const auto name = device.str();
  std::vector<std::string> lines = {fmt::format(
      "{}: own kernels for norms, rotary, SwiGLU, head and best ids; libtorch for the rest", name)};
  if (linear_dims.empty()) return lines;
  const bool has_kernels = cuda::has_delta_rule(linear_dims[0], linear_dims[1]);
  const bool has_chunks = has_chunk_kernel({1, 1, linear_dims[0], linear_dims[1]}, dtype, device);
  lines.push_back(fmt::format(
      "{}: delta rule: {} over whole rows, {}", name,
      has_chunks ? "own kernel" : "chunks by libtorch in float32",
      has_kernels ? "own kernel token by token and along trees"
                  : "libtorch token by token and along trees"));
  return lines;
}

}  // namespace

std::vector<std::string>
describe_operations(torch::Device device, torch::ScalarType dtype, const ModelHeads& heads) {
  if (!device.is_cpu()) return describe_on_gpu(device, dtype, heads.linear_dims);
  // The lowest bit is the best target of those compiled that this processor has.
  const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  const char* vectors = hwy::TargetName(targets & -targets);
  const bool is_half = dtype == torch::kBFloat16;
  std::vector<std::string> lines = {
      fmt::format(
          "matrix products: libtorch{}, own kernel up to {} rows, or {} single tokens",
          is_half ? describe_half_products() : "", most_few_rows(dtype), most_single_tokens(dtype)),
      fmt::format(
          "attention: {} over whole rows, own kernel over a cache",
          has_causal_kernel(heads.heads, heads.key_heads, heads.head_dim, dtype, device)
              ? "own kernel (AVX-512 BF16)"
              : "libtorch"),
      fmt::format("norms, rotary, SwiGLU, short convolution: own kernels ({})", vectors)};
  if (heads.linear_dims.empty()) return lines;
  lines.push_back(fmt::format(
      "delta rule: {} over whole rows, own kernel token by token and along trees",
      is_half && has_delta_tile_chunks(heads.linear_dims[0], heads.linear_dims[1])
          ? "own chunk kernel on the tile unit (AMX)"
          : fmt::format("own chunk kernel ({})", vectors)));
  return lines;
}

}  // namespace draftsmith::ops
