// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "draftsmith/base/error.h"
#include "draftsmith/formats/hf_config.h"

#include "tests/base/expect_error.h"

namespace draftsmith::formats {
namespace {

using testing::expect_error;
using Ids = std::vector<int64_t>;

TEST(TargetLayerIds, AreThoseOfPublishedDrafters) {
  EXPECT_EQ(choose_target_layer_ids(36, 5), (Ids{1, 9, 17, 25, 33}));
  EXPECT_EQ(choose_target_layer_ids(64, 5), (Ids{1, 16, 31, 46, 61}));
  EXPECT_EQ(choose_target_layer_ids(40, 5), (Ids{1, 10, 19, 28, 37}));
  EXPECT_EQ(choose_target_layer_ids(32, 5), (Ids{1, 8, 15, 22, 29}));
}

TEST(TargetLayerIds, AreTheMiddleLayerWhenThereIsOne) {
  EXPECT_EQ(choose_target_layer_ids(36, 1), Ids{18});
  EXPECT_EQ(choose_target_layer_ids(5, 1), Ids{2});
  EXPECT_EQ(choose_target_layer_ids(4, 1), Ids{2});
}

TEST(TargetLayerIds, RoundHalvesToEven) {
  EXPECT_EQ(choose_target_layer_ids(7, 3), (Ids{1, 2, 4}));         // 2.5 -> 2
  EXPECT_EQ(choose_target_layer_ids(9, 3), (Ids{1, 4, 6}));         // 3.5 -> 4
  EXPECT_EQ(choose_target_layer_ids(10, 5), (Ids{1, 2, 4, 6, 7}));  // 2.5 -> 2, 5.5 -> 6
}

TEST(TargetLayerIds, RunFromOneToTheThirdLastLayerWithoutRepeats) {
  for (int64_t layers = 5; layers <= 100; ++layers) {
    for (int64_t count = 2; count <= std::min<int64_t>(layers - 3, 9); ++count) {
      const auto ids = choose_target_layer_ids(layers, count);
      ASSERT_EQ(static_cast<int64_t>(ids.size()), count);
      EXPECT_EQ(ids.front(), 1);
      EXPECT_EQ(ids.back(), layers - 3);
      EXPECT_EQ(std::adjacent_find(ids.begin(), ids.end(), std::greater_equal<>()), ids.end());
    }
  }
}

TEST(TargetLayerIds, AreRefusedForTargetsThatAreTooSmall) {
  for (const auto& [layers, count] : std::vector<std::pair<int64_t, int64_t>>{
           {4, 2}, {6, 5}, {3, 2}, {2, 1}, {1, 1}, {36, 0}, {36, -1}, {36, 34}}) {
    SCOPED_TRACE(std::to_string(layers) + " layers, " + std::to_string(count) + " ids");
    expect_error<ConfigError>(
        [layers = layers, count = count] { choose_target_layer_ids(layers, count); },
        {"drafter.target_layer_ids", std::to_string(layers)});
  }
}

}  // namespace
}  // namespace draftsmith::formats
