// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>

#include "draftsmith/model/target.h"

#include "tests/support/golden.h"

namespace draftsmith::model {
namespace {

namespace fs = std::filesystem;

/// The arg-max at all 8 x 128 positions, one row at a time.
torch::Tensor argmax_of(const std::string& dtype) {
  TargetSettings settings;
  settings.path = DS_DEMO_MODEL;
  settings.dtype = dtype;
  const auto target = Target::load(settings);
  const auto ids = testing::golden("smollm2/expected.safetensors").tensor("input_ids");
  std::vector<torch::Tensor> rows;
  for (int64_t b = 0; b < ids.size(0); ++b)
    rows.push_back(target.logits(target.forward(ids.narrow(0, b, 1), {}).last).argmax(-1));
  return torch::cat(rows);
}

struct SmolLm2 : ::testing::Test {
  formats::SafetensorsReader file = testing::golden("smollm2/expected.safetensors");

  void SetUp() override {
    if (!fs::exists(fs::path(DS_DEMO_MODEL) / "config.json"))
      GTEST_SKIP() << "the demo model is not converted: no config.json in " << DS_DEMO_MODEL;
  }
};

TEST_F(SmolLm2, AgreesInFloat32WhereverTheBestLogitIsClear) {
  const auto is_equal = argmax_of("float32").eq(file.tensor("float32.argmax"));
  const auto is_clear = file.tensor("float32.top_gap") > 0.01;
  EXPECT_GT(is_clear.sum().item<int64_t>(), 900);
  EXPECT_TRUE(is_equal.logical_or(is_clear.logical_not()).all().item<bool>());
}

TEST_F(SmolLm2, AgreesInBfloat16AtNearlyAllPositions) {
  const auto is_equal = argmax_of("bfloat16").eq(file.tensor("bfloat16.argmax"));
  EXPECT_GE(is_equal.to(torch::kDouble).mean().item<double>(), 0.97);
}

}  // namespace
}  // namespace draftsmith::model
