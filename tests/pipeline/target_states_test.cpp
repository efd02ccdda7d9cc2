// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/target_states.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace draftsmith::pipeline
