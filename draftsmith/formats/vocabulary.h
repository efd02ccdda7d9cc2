// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace draftsmith::formats {

/// The tokens of a folder's tokenizer.json. It can turn ids into text, not text into ids.
class Vocabulary {
 public:
  /// Empty if the folder has no tokenizer.json. Errors: DataError for a damaged one.
  static Vocabulary from_folder(const std::filesystem::path& folder);

  bool empty() const { return ids_.empty(); }

  /// As they stand in the file, added tokens included.
  const std::map<std::string, int64_t>& ids() const { return ids_; }

  /// The bytes that a token stands for; a character of several bytes may be spread over several
  /// tokens. "<id>" for an id without a token.
  std::string text(int64_t id) const;

  /// The same for people: `" cat"`, `"\n"`; bytes that are no UTF-8 by themselves in hexadecimal,
  /// and the number of an id without a token.
  std::string show(int64_t id) const;

 private:
  std::map<std::string, int64_t> ids_;
  std::map<int64_t, std::string> texts_;
};

}  // namespace draftsmith::formats
