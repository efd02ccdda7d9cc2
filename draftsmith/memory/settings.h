// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "draftsmith/base/fields.h"

namespace draftsmith::memory {

struct MemorySettings {
  std::string budget = "0";        // bytes as text, e.g. 20GiB; 0 = what the device has
  std::string recompute = "auto";  // auto, none, layer
};

void add_fields(FieldList& fields, MemorySettings& settings);

/// "20GiB", "512MiB", "1.5GB" or plain bytes. Errors: ConfigError naming `key`.
int64_t parse_bytes(const std::string& text, const std::string& key);

/// "4.50 GiB", "12 MiB": three digits.
std::string print_bytes(int64_t bytes);

}  // namespace draftsmith::memory
