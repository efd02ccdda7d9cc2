// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/blank_batch.h"

#include <gtest/gtest.h>

#include "tests/pipeline/tiny_data.h"

namespace draftsmith::pipeline {
namespace {

TEST(BlankRows, AreAsLongAsASequenceMayBe) {
  EXPECT_EQ(make_blank_rows(100, 0).sizes(), (std::vector<int64_t>{1, 100}));
  EXPECT_EQ(make_blank_rows(100, 100).sizes(), (std::vector<int64_t>{1, 100}));
  EXPECT_EQ(make_blank_rows(100, 30).sizes(), (std::vector<int64_t>{4, 25}));
  EXPECT_EQ(make_blank_rows(103, 30).sizes(), (std::vector<int64_t>{4, 25}));
}

TEST(BlankBatch, FillsItsShapeWithBlocksThatHaveLabels) {
  const auto target = testing::load_target("targets/qwen3-tiny");
  auto recipe = testing::tiny_recipe();
  for (const int64_t max_length : {0, 9}) {
    recipe.shapes.max_length = max_length;
    for (const int64_t tokens : {2, 20, 37})
      for (const int64_t blocks : {1, 7, 40}) {
        const auto batch = make_blank_batch(target, recipe, tokens, blocks);
        const int64_t K = recipe.rule.block_size;
        EXPECT_EQ(batch.features.size(1), tokens);
        EXPECT_EQ(batch.teacher_states.size(1), tokens);
        EXPECT_EQ(batch.blocks.context_positions.size(1), tokens);
        EXPECT_EQ(batch.embedded.size(1), blocks * K);
        EXPECT_EQ(batch.blocks.labels.size(1), blocks);
        EXPECT_TRUE(batch.blocks.layout.keep.all().item<bool>());
        EXPECT_TRUE((batch.blocks.weights.sum(2) > 0).all().item<bool>());
        EXPECT_TRUE((batch.blocks.layout.anchors < tokens).all().item<bool>());
      }
  }
}

}  // namespace
}  // namespace draftsmith::pipeline
