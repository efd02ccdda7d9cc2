// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "draftsmith/base/fields.h"

namespace draftsmith::pipeline {

struct ExtractSettings {
  std::string out;
  std::string format = "bf16";
  std::vector<int64_t> layers;  // empty = the drafter's
};

void add_fields(FieldList& fields, ExtractSettings& settings);

}  // namespace draftsmith::pipeline
