// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace draftsmith {

/// Whether a name that was read from a file can name something in that file's folder. Others must
/// not be followed: they lead elsewhere, or are longer than a file system's names.
inline bool is_plain_file_name(std::string_view name) {
  using namespace std::string_view_literals;
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         name.find_first_of("/\0"sv) == std::string_view::npos;
}

}  // namespace draftsmith
