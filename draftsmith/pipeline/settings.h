// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "draftsmith/base/fields.h"
#include "draftsmith/model/settings.h"

namespace draftsmith::pipeline {

struct ExtractSettings {
  std::string out;
  std::string format = "bf16";
  std::vector<int64_t> layers;  // empty = the drafter's
};

/// Who makes batches and who trains on them.
struct PipelineSettings {
  int64_t target_workers = 1;  // 0 = the drafter's thread runs the target itself
  int64_t drafter_workers = 1;
  int64_t queue_batches = 2;
  std::vector<std::string> target_devices;  // one for each worker; empty = target.device for all
  std::vector<std::string>
      drafter_devices;  // one for each worker; empty = that of the first target
  std::string role = "both";
  bool cuda_graphs = false;
  double timeout = 600;  // seconds

  /// Errors: ConfigError for settings that contradict each other or the target's; DeviceError for
  /// a device that this build does not have.
  void check(const model::TargetSettings& target) const;

  /// Errors: ConfigError if drafters' steps are to be captured where they cannot be.
  void check_graphs(
      const model::TargetSettings& target,
      bool has_static_shapes,
      const std::string& attention_method) const;

  /// Where the states of each target worker come from, at least one, and where each drafter is.
  std::vector<std::string> name_target_devices(const model::TargetSettings& target) const;
  std::vector<std::string> name_drafter_devices(const model::TargetSettings& target) const;

  /// Whether a target and a drafter are on one device.
  bool shares_devices(const model::TargetSettings& target) const;
};

void add_fields(FieldList& fields, ExtractSettings& settings);
void add_fields(FieldList& fields, PipelineSettings& settings);

}  // namespace draftsmith::pipeline
