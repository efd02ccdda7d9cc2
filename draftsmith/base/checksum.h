// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace draftsmith {

/// CRC-32C (Castagnoli) of bytes. `crc` is that of the bytes before them, so long data can be fed
/// in pieces.
uint32_t crc32c(std::string_view bytes, uint32_t crc = 0);

/// The same of a whole file. Errors: DataError if it cannot be read.
uint32_t crc32c_of_file(const std::filesystem::path& path);

}  // namespace draftsmith
