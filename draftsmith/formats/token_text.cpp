// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/formats/token_text.h"

#include <fmt/format.h>

#include <optional>
#include <vector>

#include "draftsmith/formats/json.h"

namespace draftsmith::formats {
namespace fs = std::filesystem;
namespace {

/// The code points of UTF-8 text; nothing if it is not valid.
std::optional<std::vector<uint32_t>> decode_utf8(const std::string& text) {
  std::vector<uint32_t> points;
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i++]);
    const int more = first < 0x80       ? 0
                     : first >> 5 == 6  ? 1
                     : first >> 4 == 14 ? 2
                     : first >> 3 == 30 ? 3
                                        : -1;
    if (more < 0) return {};
    uint32_t point = more == 0 ? first : first & (0x3FU >> more);
    for (int j = 0; j < more; ++j, ++i) {
      if (i >= text.size() || (static_cast<unsigned char>(text[i]) & 0xC0U) != 0x80) return {};
      point = point << 6 | (static_cast<unsigned char>(text[i]) & 0x3FU);
    }
    points.push_back(point);
  }
  return points;
}

/// Byte-level BPE writes each byte as a printable character: itself where it is one, else the
/// next one from U+0100 on. The inverse table.
std::map<uint32_t, char> make_byte_table() {
  std::map<uint32_t, char> bytes;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    bytes[is_printable ? byte : next++] = static_cast<char>(byte);
  }
  return bytes;
}

/// The text of a byte-level token; nothing if it holds other characters.
std::optional<std::string> decode_bytes(const std::string& token) {
  static const auto bytes = make_byte_table();
  const auto points = decode_utf8(token);
  if (!points) return {};
  std::string text;
  for (const uint32_t point : *points) {
    const auto found = bytes.find(point);
    if (found == bytes.end()) return {};
    text += found->second;
  }
  return text;
}

/// SentencePiece writes a space as U+2581.
std::string replace_spaces(std::string token) {
  static const std::string mark = "\u2581";
  for (size_t at = token.find(mark); at != std::string::npos; at = token.find(mark, at))
    token.replace(at, mark.size(), " ");
  return token;
}

std::string quote(const std::string& text) {
  if (decode_utf8(text)) return Json(text).dump();
  std::string shown = "<";
  for (const char byte : text)
    shown += fmt::format("{:02X}", static_cast<unsigned char>(byte));
  return shown + ">";
}

bool is_byte_level(const JsonObject& tokenizer) {
  return tokenizer.has("decoder") &&
         tokenizer.value().at("decoder").dump().find("ByteLevel") != std::string::npos;
}

}  // namespace

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

TokenText::TokenText(const fs::path& folder) {
  const auto vocabulary = read_vocabulary(folder);
  if (vocabulary.empty()) return;
  const bool has_bytes = is_byte_level(JsonObject::from_file(folder / "tokenizer.json"));
  for (const auto& [token, id] : vocabulary) {
    const auto text = has_bytes ? decode_bytes(token) : std::nullopt;
    pieces_[id] = text ? *text : replace_spaces(token);
  }
}

std::string TokenText::show(int64_t id) const {
  const auto found = pieces_.find(id);
  return found == pieces_.end() ? fmt::format("{}", id) : quote(found->second);
}

}  // namespace draftsmith::formats
