// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "draftsmith/formats/json.h"

namespace draftsmith::app {

/// What `eval --json` printed, as report_page.html draws it: `methods` (the one that was asked for,
/// then the drafter it was compared with) and `sweep`, each with its `sets` and their `total`.
/// Errors: DataError naming the file and what is no figure of an evaluation.
formats::Json evaluation_as_json(const std::filesystem::path& file);

}  // namespace draftsmith::app
