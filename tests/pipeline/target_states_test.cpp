// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/target_states.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/support/tiny_models.h"

namespace draftsmith::pipeline {
namespace {

TEST(OpenTargets, OpensOneForEachDevice) {
  std::vector<std::string> opened;
  model::TargetSettings settings;
  settings.path = "somewhere";
  const auto targets = open_targets(settings, {"cuda:1", "cuda:0", "cuda:1"}, [&](const auto& own) {
    EXPECT_EQ(own.path, "somewhere");
    opened.push_back(own.device);
    return testing::load_target("targets/qwen3-tiny");
  });
  EXPECT_EQ(opened, (std::vector<std::string>{"cuda:1", "cuda:0"}));
  ASSERT_EQ(targets.size(), 3U);
  EXPECT_EQ(targets[0], targets[2]);
  EXPECT_NE(targets[0], targets[1]);
}

TEST(FitPositions, LowersTheLengthToTheTargetsPositionsAndSaysSo) {
  data::DataSettings settings;
  settings.max_length = 8192;
  formats::TargetConfig target;
  const auto fit = [&](int64_t positions) {
    target.max_position_embeddings = positions;
    ::testing::internal::CaptureStderr();
    const int64_t length = fit_positions(settings, target).max_length;
    return std::make_pair(length, ::testing::internal::GetCapturedStderr());
  };
  using Fitted = std::pair<int64_t, std::string>;
  EXPECT_EQ(
      fit(4096), Fitted(4096, "data.max_length: 8192 lowered to the target's 4096 positions\n"));
  EXPECT_EQ(fit(8192), Fitted(8192, ""));
  EXPECT_EQ(fit(0), Fitted(8192, ""));  // a config that does not say
}

}  // namespace
}  // namespace draftsmith::pipeline
