// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/formats/json.h"

#include <fmt/format.h>

#include <cmath>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"
#include "draftsmith/formats/json_building.h"

namespace draftsmith::formats {
namespace {

/// Whole numbers above INT64_MAX are kept as unsigned ones by the parser.
bool is_int64(const Json& value) {
  return value.is_number_integer() &&
         (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX);
}

std::string shorten(const Json& value) {
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where) {
  return build_json<Json>(text, where);
}

Json parse_json_or_null(std::string_view text) {
  try {
    return parse_json(text, "line");
  } catch (const DataError&) {
    return nullptr;
  }
}

Json read_json_file(const std::filesystem::path& path) {
  return parse_json(read_file(path), path.string());
}

JsonObject::JsonObject(Json value, std::string where)
    : value_(std::move(value)), where_(std::move(where)) {
  if (!value_.is_object()) {
    throw DataError(
        {.what = "JSON", .expected = "an object", .got = shorten(value_), .where = where_});
  }
}

JsonObject JsonObject::from_file(const std::filesystem::path& path) {
  return {read_json_file(path), path.string()};
}

bool JsonObject::has(std::string_view key) const {
  const auto found = value_.find(std::string(key));
  return found != value_.end() && !found->is_null();
}

const Json& JsonObject::at(std::string_view key) const {
  if (!has(key)) fail(key, "a value", "none");
  return *value_.find(std::string(key));
}

void JsonObject::fail(std::string_view key, const std::string& expected, const std::string& got)
    const {
  throw DataError({.what = std::string(key), .expected = expected, .got = got, .where = where_});
}

int64_t JsonObject::integer(std::string_view key, int64_t low, int64_t high) const {
  const Json& value = at(key);
  if (!is_int64(value) || value.get<int64_t>() < low || value.get<int64_t>() > high)
    fail(key, fmt::format("a whole number from {} to {}", low, high), shorten(value));
  return value.get<int64_t>();
}

int64_t JsonObject::integer_or(std::string_view key, int64_t fallback, int64_t low, int64_t high)
    const {
  return has(key) ? integer(key, low, high) : fallback;
}

double JsonObject::number(std::string_view key) const {
  const Json& value = at(key);
  if (!value.is_number() || !std::isfinite(value.get<double>()))
    fail(key, "a number", shorten(value));
  return value.get<double>();
}

double JsonObject::number_or(std::string_view key, double fallback) const {
  return has(key) ? number(key) : fallback;
}

bool JsonObject::boolean_or(std::string_view key, bool fallback) const {
  if (!has(key)) return fallback;
  if (!at(key).is_boolean()) fail(key, "true or false", shorten(at(key)));
  return at(key).get<bool>();
}

std::string JsonObject::text(std::string_view key) const {
  if (!at(key).is_string()) fail(key, "a text", shorten(at(key)));
  return at(key).get<std::string>();
}

std::string JsonObject::text_or(std::string_view key, std::string fallback) const {
  return has(key) ? text(key) : fallback;
}

std::vector<int64_t> JsonObject::integers(std::string_view key) const {
  const Json& value = at(key);
  if (is_int64(value)) return {value.get<int64_t>()};
  if (!value.is_array()) fail(key, "a list of whole numbers", shorten(value));
  std::vector<int64_t> result;
  for (const Json& item : value) {
    if (!is_int64(item)) fail(key, "a list of whole numbers", shorten(value));
    result.push_back(item.get<int64_t>());
  }
  return result;
}

std::vector<std::string> JsonObject::texts(std::string_view key) const {
  const Json& value = at(key);
  if (!value.is_array()) fail(key, "a list of texts", shorten(value));
  std::vector<std::string> result;
  for (const Json& item : value) {
    if (!item.is_string()) fail(key, "a list of texts", shorten(value));
    result.push_back(item.get<std::string>());
  }
  return result;
}

JsonObject JsonObject::object(std::string_view key) const {
  return {at(key), fmt::format("{}, {}", where_, key)};
}

}  // namespace draftsmith::formats
