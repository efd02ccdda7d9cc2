// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "draftsmith/base/fields.h"
#include "draftsmith/data/settings.h"
#include "draftsmith/eval/settings.h"
#include "draftsmith/formats/hf_config.h"
#include "draftsmith/memory/settings.h"
#include "draftsmith/model/settings.h"
#include "draftsmith/pipeline/settings.h"
#include "draftsmith/train/settings.h"

namespace draftsmith::app {

/// All settings of all commands: the folders' structs side by side.
struct RunConfig {
  model::TargetSettings target;
  model::DrafterSettings drafter;
  data::DataSettings data;
  train::LossSettings loss;
  model::AttentionSettings attention;
  memory::MemorySettings memory;
  train::TrainSettings train;
  eval::EvalSettings eval;
  eval::GenerateSettings generate;
  pipeline::ExtractSettings extract;
  pipeline::PipelineSettings pipeline;
};

/// The fields of every section; they refer to `config`, which must outlive them.
FieldList list_fields(RunConfig& config);

/// key -> value of a TOML file with one table per section, whatever the keys.
/// Errors: ConfigError with line and column of a mistake.
std::map<std::string, std::string> read_settings_text(const std::filesystem::path& path);

/// Sets fields from a TOML file with one table per section.
/// Errors: ConfigError naming the nearest key for an unknown one, or line and column of a mistake.
void read_settings_file(const std::filesystem::path& path, const FieldList& fields);

/// The fields as such a file.
std::string write_settings(const FieldList& fields);

/// key -> value as text.
std::map<std::string, std::string> settings_as_text(const FieldList& fields);

/// `exp-g10-bs16-a1024-kl15-cap01`: what sets this run apart. Blocks and `-swa` (sliding layers) are
/// the drafter's own, of which settings say nothing where drafter.init is a folder.
std::string make_run_name(const RunConfig& config, const formats::DrafterConfig& drafter);

}  // namespace draftsmith::app
