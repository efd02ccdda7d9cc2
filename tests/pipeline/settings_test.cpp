// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/settings.h"

#include <gtest/gtest.h>

#include "draftsmith/base/error.h"

#include "tests/base/expect_error.h"

namespace draftsmith::pipeline {
namespace {

using testing::expect_error;

TEST(PipelineSettings, AcceptsADeviceForEachWorker) {
  PipelineSettings settings;
  settings.check({});
  settings.target_workers = 3;
  settings.target_devices = {"cpu", "cpu", "cpu"};
  settings.drafter_devices = {"cpu"};
  settings.check({});
}

TEST(PipelineSettings, RefusesDevicesThatAreNotOneForEachWorker) {
  PipelineSettings settings;
  settings.target_devices = {"cpu", "cpu"};
  expect_error<ConfigError>(
      [&] { settings.check({}); }, {"pipeline.target_devices", "--pipeline.target_workers=2"});
  settings = {};
  settings.drafter_workers = 2;
  settings.drafter_devices = {"cpu"};
  expect_error<ConfigError>(
      [&] { settings.check({}); }, {"pipeline.drafter_devices", "--pipeline.drafter_workers=1"});
}

TEST(PipelineSettings, RefusesBothWaysOfPlacingTargets) {
  model::TargetSettings target;
  target.devices = {"cpu", "cpu"};
  PipelineSettings settings;
  settings.check(target);
  settings.target_devices = {"cpu"};
  expect_error<ConfigError>(
      [&] { settings.check(target); }, {"pipeline.target_devices", "target.devices"});
}

TEST(PipelineSettings, RefusesGraphsWhereNoneCanBeRecorded) {
  PipelineSettings settings;
  settings.check_graphs({}, false, "dense");  // none are asked for
  settings.cuda_graphs = true;
  expect_error<ConfigError>(
      [&] { settings.check_graphs({}, true, "block"); },
      {"pipeline.cuda_graphs", "on the cpu", "--pipeline.cuda_graphs=false"});
  settings.drafter_devices = {"cuda:0"};
  settings.check_graphs({}, true, "block");
  expect_error<ConfigError>(
      [&] { settings.check_graphs({}, false, "block"); }, {"--data.static_shapes=true"});
  expect_error<ConfigError>(
      [&] { settings.check_graphs({}, true, "gather"); }, {"--attention.method=block"});
}

TEST(PipelineSettings, PlacesEveryWorker) {
  using Names = std::vector<std::string>;
  PipelineSettings settings;
  model::TargetSettings target;
  settings.target_workers = 2;
  settings.drafter_workers = 2;
  EXPECT_EQ(settings.name_target_devices(target), (Names{"cpu", "cpu"}));
  EXPECT_EQ(settings.name_drafter_devices(target), (Names{"cpu", "cpu"}));
  EXPECT_TRUE(settings.shares_devices(target));
  target.device = "cuda:3";
  EXPECT_EQ(settings.name_drafter_devices(target), (Names{"cuda:3", "cuda:3"}));
  settings.target_devices = {"cuda:1", "cuda:2"};
  EXPECT_EQ(settings.name_drafter_devices(target), (Names{"cuda:1", "cuda:1"}));
  settings.drafter_devices = {"cuda:0", "cuda:4"};
  EXPECT_EQ(settings.name_drafter_devices(target), (Names{"cuda:0", "cuda:4"}));
  EXPECT_FALSE(settings.shares_devices(target));
  settings.target_devices = {};
  target.devices = {"cuda:1", "cuda:4"};  // one target over two: its states come from the last
  EXPECT_EQ(settings.name_target_devices(target), (Names{"cuda:4", "cuda:4"}));
  EXPECT_TRUE(settings.shares_devices(target));
  settings.target_workers = 0;  // the drafters' own threads run it
  EXPECT_EQ(settings.name_target_devices(target), Names{"cuda:4"});
}

TEST(PipelineSettings, NamesTheDevicesThatThereAre) {
  PipelineSettings settings;
  settings.drafter_devices = {"cuda:99"};
  expect_error<DeviceError>(
      [&] { settings.check({}); }, {"pipeline.drafter_devices", "'cuda:99'", "cpu"});
}

TEST(PipelineSettings, RefusesTargetsThatServeNobody) {
  PipelineSettings settings;
  settings.role = "target";
  settings.target_workers = 0;
  expect_error<ConfigError>([&] { settings.check({}); }, {"--pipeline.target_workers=1"});
}

}  // namespace
}  // namespace draftsmith::pipeline
