// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace draftsmith::formats {

using Json = nlohmann::ordered_json;

/// Parses text; `where` names it in messages. Errors: DataError with the byte of the mistake,
/// also for nesting deeper than any file of ours needs.
Json parse_json(std::string_view text, const std::string& where);

/// The same for a line that may be cut short or be something else: null if it does not parse.
Json parse_json_or_null(std::string_view text);

Json read_json_file(const std::filesystem::path& path);

/// One JSON object whose values are checked when they are read. `null` counts as absent.
/// Errors: DataError naming key and file.
class JsonObject {
 public:
  /// Errors: DataError unless `value` is an object.
  JsonObject(Json value, std::string where);
  static JsonObject from_file(const std::filesystem::path& path);

  bool has(std::string_view key) const;
  const Json& value() const { return value_; }
  const std::string& where() const { return where_; }

  int64_t integer(std::string_view key, int64_t low, int64_t high) const;
  int64_t integer_or(std::string_view key, int64_t fallback, int64_t low, int64_t high) const;
  double number(std::string_view key) const;  // finite
  double number_or(std::string_view key, double fallback) const;
  bool boolean_or(std::string_view key, bool fallback) const;
  std::string text(std::string_view key) const;
  std::string text_or(std::string_view key, std::string fallback) const;
  std::vector<int64_t> integers(std::string_view key) const;  // a list, or one number
  std::vector<std::string> texts(std::string_view key) const;
  JsonObject object(std::string_view key) const;

 private:
  const Json& at(std::string_view key) const;
  [[noreturn]] void fail(std::string_view key, const std::string& expected, const std::string& got)
      const;

  Json value_;
  std::string where_;
};

}  // namespace draftsmith::formats
