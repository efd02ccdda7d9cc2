// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/implementations.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "draftsmith/ops/causal_attention.h"

namespace draftsmith::ops {
namespace {

std::string
describe(torch::Device device, torch::ScalarType dtype, const std::vector<int64_t>& linear_dims) {
  return fmt::format(
      "{}", fmt::join(describe_operations(device, dtype, {4, 2, 64, linear_dims}), "|"));
}

std::string describe_on_gpu(torch::ScalarType dtype, const std::vector<int64_t>& linear_dims) {
  return describe({torch::kCUDA, 3}, dtype, linear_dims);
}

TEST(Implementations, ClaimKernelsOfAGpuOnlyForWhatTheyTake) {
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  const auto half = describe_on_gpu(torch::kBFloat16, {128, 128});
  EXPECT_TRUE(has(half, "cuda:3")) << half;
  EXPECT_TRUE(has(half, "delta rule: own kernel over whole rows")) << half;
  EXPECT_TRUE(has(half, "own kernel token by token")) << half;
  const auto wide = describe_on_gpu(torch::kFloat, {128, 128});
  EXPECT_TRUE(has(wide, "chunks by libtorch")) << wide;
  EXPECT_TRUE(has(wide, "own kernel token by token")) << wide;
  const auto narrow = describe_on_gpu(torch::kBFloat16, {16, 16});
  EXPECT_TRUE(has(narrow, "chunks by libtorch")) << narrow;
  EXPECT_TRUE(has(narrow, "libtorch token by token")) << narrow;
  EXPECT_FALSE(has(describe_on_gpu(torch::kBFloat16, {}), "delta rule"));
}

TEST(Implementations, OfTheCpuNameTheKernelsThatRunThere) {
  for (const auto dtype : {torch::kBFloat16, torch::kFloat}) {
    const auto text = describe(torch::kCPU, dtype, {16, 20});
    EXPECT_NE(text.find("delta rule: own chunk kernel ("), std::string::npos) << text;
    const bool has_attention = has_causal_kernel(4, 2, 64, dtype, torch::kCPU);
    EXPECT_EQ(text.find("attention: own kernel") != std::string::npos, has_attention) << text;
  }
}

}  // namespace
}  // namespace draftsmith::ops
