// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/formats/mask_token.h"

#include <algorithm>
#include <map>

#include "draftsmith/formats/json.h"

namespace draftsmith::formats {
namespace fs = std::filesystem;
namespace {

/// All tokens of tokenizer.json with their ids; empty if the folder has none.
std::map<std::string, int64_t> read_vocabulary(const fs::path& folder) {
  std::map<std::string, int64_t> ids;
  if (!fs::exists(folder / "tokenizer.json")) return ids;
  const auto json = JsonObject::from_file(folder / "tokenizer.json");
  if (json.has("model")) {
    const auto model = json.object("model");
    const Json vocabulary = model.has("vocab") ? model.value().at("vocab") : Json();
    if (vocabulary.is_object()) {
      for (const auto& [token, id] : vocabulary.items())
        if (id.is_number_integer()) ids[token] = id.get<int64_t>();
    } else if (vocabulary.is_array()) {  // Unigram: [token, score] in the order of the ids
      for (size_t id = 0; id < vocabulary.size(); ++id) {
        const Json& entry = vocabulary[id];
        if (entry.is_array() && !entry.empty() && entry[0].is_string())
          ids[entry[0].get<std::string>()] = static_cast<int64_t>(id);
      }
    }
  }
  if (json.has("added_tokens") && json.value().at("added_tokens").is_array()) {
    for (const auto& item : json.value().at("added_tokens")) {
      const JsonObject token(item, json.where());
      ids[token.text("content")] = token.integer("id", 0, INT32_MAX);
    }
  }
  return ids;
}

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
  const auto ids = read_vocabulary(folder);
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
