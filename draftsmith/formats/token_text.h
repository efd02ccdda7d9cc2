// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace draftsmith::formats {

/// All tokens of a folder's tokenizer.json with their ids; empty if the folder has none.
/// Errors: DataError for a file that is no tokenizer.
std::map<std::string, int64_t> read_vocabulary(const std::filesystem::path& folder);

/// Shows tokens to people: as quoted text where the folder has a tokenizer, else as numbers.
class TokenText {
 public:
  explicit TokenText(const std::filesystem::path& folder);

  /// `" cat"`, `"\n"`; bytes that are no UTF-8 by themselves as they are in hexadecimal.
  std::string show(int64_t id) const;

 private:
  std::map<int64_t, std::string> pieces_;
};

}  // namespace draftsmith::formats
