// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "draftsmith/base/fields.h"

namespace draftsmith::eval {

struct EvalSettings {
  std::string method = "chain";
  std::string prompts;
  int64_t max_new_tokens = 256;
  bool ignore_stop = false;
};

struct GenerateSettings {
  std::string prompts;
  std::string out;
  int64_t batch = 48;  // prompts side by side
  int64_t max_new_tokens = 256;
  bool ignore_stop = false;
};

void add_fields(FieldList& fields, EvalSettings& settings);
void add_fields(FieldList& fields, GenerateSettings& settings);

}  // namespace draftsmith::eval
