// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "draftsmith/formats/hf_config.h"
#include "draftsmith/formats/json.h"

#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"

namespace draftsmith::testing {

/// config.json of a fixture, to be changed.
inline formats::Json config_of(const std::string& fixture_name) {
  return formats::read_json_file(fixture(fixture_name) / "config.json");
}

inline formats::TargetConfig read_target(const formats::Json& json) {
  const TempFolder folder;
  folder.write("config.json", json.dump());
  return formats::read_target_config(folder.path());
}

inline formats::DrafterConfig read_drafter(const formats::Json& json) {
  const TempFolder folder;
  folder.write("config.json", json.dump());
  return formats::read_drafter_config(folder.path());
}

}  // namespace draftsmith::testing
