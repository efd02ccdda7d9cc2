// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/formats/vocabulary.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"
#include "draftsmith/base/replace_all.h"
#include "draftsmith/formats/json_building.h"

namespace draftsmith::formats {
namespace fs = std::filesystem;
namespace {

// Objects of 250,000 keys: the sorted map, which finds a key without a look at all of them.
using Sorted = nlohmann::json;

[[noreturn]] void fail(const fs::path& path, std::string expected, std::string got) {
  throw DataError(
      {.what = "tokenizer",
       .expected = std::move(expected),
       .got = std::move(got),
       .where = path.string()});
}

int64_t read_id(const Sorted& value, const fs::path& path) {
  const int64_t id = value.is_number_integer() ? value.get<int64_t>() : -1;
  if (id < 0 || id > INT32_MAX) fail(path, "token ids from 0 to 2147483647", value.dump());
  return id;
}

/// The characters that stand for the 256 bytes in byte-level vocabularies: printable Latin-1
/// characters for themselves, 256 and on for the others. Source: GPT-2's bytes_to_unicode.
std::map<char32_t, char> make_byte_table() {
  std::map<char32_t, char> table;
  char32_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool is_itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    table[is_itself ? static_cast<char32_t>(byte) : next++] = static_cast<char>(byte);
  }
  return table;
}

/// Code points of UTF-8 text; nothing if it is not valid.
std::optional<std::u32string> decode_utf8(const std::string& text) {
  std::u32string points;
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    const size_t count = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if (i + count > text.size()) return std::nullopt;
    char32_t point = count == 1 ? first : first & (0x7f >> count);
    for (size_t k = 1; k < count; ++k)
      point = (point << 6) | (static_cast<unsigned char>(text[i + k]) & 0x3f);
    points += point;
    i += count;
  }
  return points;
}

std::string decode_byte_level(const std::string& token) {
  static const auto table = make_byte_table();
  const auto points = decode_utf8(token);
  if (!points) return token;
  std::string bytes;
  for (const char32_t point : *points) {
    const auto found = table.find(point);
    if (found == table.end()) return token;
    bytes += found->second;
  }
  return bytes;
}

/// SentencePiece: "\u2581" is a space, "<0x0A>" a byte.
std::string decode_sentence_piece(const std::string& token) {
  if (token.size() == 6 && token.rfind("<0x", 0) == 0 && token.back() == '>') {
    int byte = 0;
    const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
    if (error == std::errc() && end == token.data() + 5) return {static_cast<char>(byte)};
  }
  return replace_all(token, "\xe2\x96\x81", " ");
}

}  // namespace

Vocabulary Vocabulary::from_folder(const fs::path& folder) {
  Vocabulary vocabulary;
  const fs::path path = folder / "tokenizer.json";
  if (!fs::exists(path)) return vocabulary;
  const Sorted json = build_json<Sorted>(read_file(path), path.string());
  if (!json.is_object()) fail(path, "an object", json.type_name());
  const Sorted model = json.value("model", Sorted::object());
  const Sorted tokens = model.is_object() ? model.value("vocab", Sorted()) : Sorted();
  const bool is_byte_level =
      json.value("decoder", Sorted()).dump().find("ByteLevel") != std::string::npos;
  const auto add = [&](const std::string& token, int64_t id) {
    vocabulary.ids_[token] = id;
    vocabulary.texts_[id] = is_byte_level ? decode_byte_level(token) : decode_sentence_piece(token);
  };
  if (tokens.is_object()) {
    for (const auto& [token, id] : tokens.items())
      add(token, read_id(id, path));
  } else if (tokens.is_array()) {  // Unigram: [token, score] in the order of the ids
    for (size_t id = 0; id < tokens.size(); ++id)
      if (tokens[id].is_array() && !tokens[id].empty() && tokens[id][0].is_string())
        add(tokens[id][0].get<std::string>(), static_cast<int64_t>(id));
  }
  const Sorted added = json.value("added_tokens", Sorted::array());
  if (!added.is_null() && !added.is_array())
    fail(path, "added_tokens as a list", added.type_name());
  for (const auto& item : added) {
    if (!item.is_object() || !item.contains("content") || !item["content"].is_string() ||
        !item.contains("id"))
      fail(path, "added tokens with content and id", item.dump());
    const int64_t id = read_id(item["id"], path);
    vocabulary.ids_[item["content"].get<std::string>()] = id;
    vocabulary.texts_[id] = item["content"].get<std::string>();
  }
  return vocabulary;
}

std::string Vocabulary::text(int64_t id) const {
  const auto found = texts_.find(id);
  return found == texts_.end() ? fmt::format("<{}>", id) : found->second;
}

std::string Vocabulary::show(int64_t id) const {
  const auto found = texts_.find(id);
  if (found == texts_.end()) return fmt::format("{}", id);
  try {
    return Sorted(found->second).dump();
  } catch (const nlohmann::json::exception&) {  // no UTF-8
    std::string shown = "<";
    for (const char byte : found->second)
      shown += fmt::format("{:02X}", static_cast<unsigned char>(byte));
    return shown + ">";
  }
}

}  // namespace draftsmith::formats
