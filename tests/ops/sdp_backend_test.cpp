// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/sdp_backend.h"

#include <gtest/gtest.h>

#include "draftsmith/base/error.h"

#include "tests/support/reference.h"

namespace draftsmith::ops {
namespace {

TEST(SdpBackend, OfTheCpuKeepsNoScores) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16})
    for (const int64_t head_dim : {64, 128})
      EXPECT_EQ(find_gather_backend(torch::kCPU, dtype, head_dim), SdpBackend::kFlash);
}

TEST(SdpBackend, MathOnCudaMustBeAllowed) {
  testing::expect_error<DeviceError>(
      [] { check_gather_backend(SdpBackend::kMath, torch::kCUDA, false); },
      {"by gather", "math", "--attention.method=block", "--attention.allow_math=true"});
  EXPECT_NO_THROW(check_gather_backend(SdpBackend::kMath, torch::kCUDA, true));
  EXPECT_NO_THROW(check_gather_backend(SdpBackend::kMath, torch::kCPU, false));
  for (const auto backend :
       {SdpBackend::kFlash, SdpBackend::kEfficient, SdpBackend::kCudnn, SdpBackend::kOther})
    EXPECT_NO_THROW(check_gather_backend(backend, torch::kCUDA, false)) << name_of(backend);
}

TEST(SdpBackend, HasAName) {
  EXPECT_STREQ(name_of(SdpBackend::kMath), "math");
  EXPECT_STREQ(name_of(SdpBackend::kFlash), "flash");
}

}  // namespace
}  // namespace draftsmith::ops
