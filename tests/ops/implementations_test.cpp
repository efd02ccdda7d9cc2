// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/implementations.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

namespace draftsmith::ops {
namespace {

std::string describe_on_gpu(torch::ScalarType dtype, const std::vector<int64_t>& head_dims) {
  return fmt::format(
      "{}", fmt::join(describe_operations({torch::kCUDA, 3}, dtype, head_dims), "|"));
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

}  // namespace
}  // namespace draftsmith::ops
