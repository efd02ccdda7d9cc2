// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace draftsmith::formats {

/// What config.json of a model folder says of its weights: "bfloat16", "float32", ..., "quantized",
/// or nothing. Errors: DataError for a damaged file.
std::string read_stored_dtype(const std::filesystem::path& folder);

}  // namespace draftsmith::formats
