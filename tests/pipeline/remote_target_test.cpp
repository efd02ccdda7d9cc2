// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/remote_target.h"

#include <gtest/gtest.h>

#include <thread>

#include "draftsmith/base/error.h"

#include "tests/pipeline/tiny_data.h"
#include "tests/support/rank_threads.h"
#include "tests/support/reference.h"

namespace draftsmith::pipeline {
namespace {

const model::Target& tiny_target() {
  static const auto target = testing::load_target("targets/qwen3-tiny");
  return target;
}

TEST(RemoteTarget, MakesTheBatchesOfALocalOneBitForBit) {
  const auto source = testing::make_ten_sequence_source();
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    // Ranks 0 and 1 ask, each in two threads; ranks 2 and 3 run the target.
    testing::run_ranks(4, [&](Ranks& links) {
      if (links.rank() >= 2) {
        serve_target(tiny_target(), links, 2);
        return;
      }
      const auto rule = testing::tiny_recipe().rule;
      const std::vector<int64_t> layer_ids = {0, 2};
      const auto ask = [&](int64_t server) {
        const RemoteTarget remote(links, server, server);
        for (int64_t i = 0; i < 5; ++i) {
          auto batch = source.load({0, i}, rule);
          const auto here = make_train_batch(tiny_target(), batch, layer_ids, dtype);
          const auto there =
              remote.make_train_batch(tiny_target(), std::move(batch), layer_ids, dtype);
          EXPECT_TRUE(there.features.equal(here.features));
          EXPECT_TRUE(there.teacher_states.equal(here.teacher_states));
          EXPECT_TRUE(there.embedded.equal(here.embedded));
          EXPECT_TRUE(there.blocks.labels.equal(here.blocks.labels));
          EXPECT_EQ(there.next, here.next);
          ASSERT_TRUE(there.times.elsewhere.has_value());
          EXPECT_GT(there.times.elsewhere->working, 0);
        }
      };
      std::thread other([&] { ask(3); });
      ask(2);
      other.join();
      for (const int64_t server : {2, 3})
        RemoteTarget(links, server, server).say_goodbye(false);
    });
  }
}

TEST(RemoteTarget, TellsItsServerOfAFailure) {
  testing::expect_error<DataError>(
      [] {
        testing::run_ranks(2, [](Ranks& links) {
          if (links.rank() == 1) {
            testing::expect_error<DeviceError>(
                [&] { serve_target(tiny_target(), links, 1); }, {"rank 0", "row 5"});
            return;
          }
          links.announce_end("row 5 is wrong");
          RemoteTarget(links, 1, 1).say_goodbye(true);
          throw DataError({.what = "row 5"});
        });
      },
      {"row 5"});
}

TEST(RemoteTarget, GivesTheDrafterTheTargetsError) {
  const auto source = testing::make_ten_sequence_source();
  testing::expect_error<DeviceError>(
      [&] {
        testing::run_ranks(2, [&](Ranks& links) {
          if (links.rank() == 1) {
            serve_target(tiny_target(), links, 1);
            return;
          }
          auto batch = source.load({0, 0}, testing::tiny_recipe().rule);
          // No target has layer 77.
          RemoteTarget(links, 1, 1).make_train_batch(
              tiny_target(), std::move(batch), {77}, torch::kFloat);
        });
      },
      {"rank 1"});
}

}  // namespace
}  // namespace draftsmith::pipeline
