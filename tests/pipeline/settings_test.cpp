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

TEST(PipelineSettings, RefusesWhatDoesNothing) {
  PipelineSettings settings;
  settings.cuda_graphs = true;
  expect_error<ConfigError>([&] { settings.check({}); }, {"pipeline.cuda_graphs"});
  settings = {};
  settings.role = "target";
  settings.target_workers = 0;
  expect_error<ConfigError>([&] { settings.check({}); }, {"--pipeline.target_workers=1"});
}

}  // namespace
}  // namespace draftsmith::pipeline
