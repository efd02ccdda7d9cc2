// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace draftsmith::formats {

/// Tells models apart whatever their path: bytes of the weights, and a checksum of config.json and
/// of 64 evenly spread samples of every safetensors file, its header among them. Reading all of a
/// large model would take minutes.
/// Errors: DataError if a file cannot be read.
std::string fingerprint_model(const std::filesystem::path& folder);

}  // namespace draftsmith::formats
