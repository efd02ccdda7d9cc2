// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/formats/mask_token.h"

#include <algorithm>

#include "draftsmith/formats/json.h"
#include "draftsmith/formats/vocabulary.h"

namespace draftsmith::formats {
namespace fs = std::filesystem;
namespace {

/// A special token of tokenizer_config.json: a text, or an object with `content`.
std::string read_special_token(const fs::path& folder, const std::string& key) {
  if (!fs::exists(folder / "tokenizer_config.json")) return "";
  const auto json = JsonObject::from_file(folder / "tokenizer_config.json");
  if (!json.has(key)) return "";
  return json.value().at(key).is_object() ? json.object(key).text_or("content", "")
                                          : json.text(key);
}

}  // namespace

MaskToken choose_mask_token(const fs::path& folder, int64_t vocab_size) {
  const auto vocabulary = Vocabulary::from_folder(folder);
  const auto& ids = vocabulary.ids();
  const auto find = [&](const std::string& key) -> int64_t {
    const std::string token = read_special_token(folder, key);
    const auto found = token.empty() ? ids.end() : ids.find(token);
    return found == ids.end() || found->second >= vocab_size ? -1 : found->second;
  };
  if (const int64_t id = find("mask_token"); id >= 0) return {id, "the tokenizer's mask token"};
  if (!ids.empty()) {
    const int64_t used = std::max_element(
                             ids.begin(), ids.end(),
                             [](const auto& a, const auto& b) { return a.second < b.second; })
                             ->second +
                         1;
    if (used < vocab_size)
      return {used, "the first embedding row that the tokenizer leaves unused"};
  }
  for (const char* key : {"pad_token", "eos_token", "unk_token"}) {
    if (const int64_t id = find(key); id >= 0)
      return {id, std::string("the tokenizer's ") + key, true};
  }
  return {};
}

}  // namespace draftsmith::formats
