// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "draftsmith/base/fields.h"
#include "draftsmith/eval/draft_source.h"
#include "draftsmith/eval/token_picker.h"

namespace draftsmith::eval {

struct EvalSettings {
  std::string method = "chain";
  int64_t tree_budget = 32;  // nodes without the root
  double temperature = 0;
  bool sample_drafts = false;
  int64_t seed = 0;
  std::string prompts;
  int64_t max_new_tokens = 256;
  bool ignore_stop = false;
  int64_t batch = 1;  // prompts side by side
  int64_t repeats = 1;
  std::string sweep = "none";
  std::string compare;  // folder of a second drafter
};

struct GenerateSettings {
  std::string prompts;
  std::string out;
  int64_t batch = 48;  // prompts side by side
  int64_t max_new_tokens = 256;
  double temperature = 0;
  int64_t seed = 0;
  bool ignore_stop = false;
};

void add_fields(FieldList& fields, EvalSettings& settings);
void add_fields(FieldList& fields, GenerateSettings& settings);

TokenPicker make_picker(const EvalSettings& settings);

/// Errors: ConfigError for drafts that are drawn in a tree.
DraftOptions make_draft_options(const EvalSettings& settings);

}  // namespace draftsmith::eval
