// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/base/fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "draftsmith/base/error.h"

namespace draftsmith {
namespace {

constexpr size_t kMostLetters = 100;  // of an unknown key that are compared with the known ones

[[noreturn]] void
fail_value(const std::string& key, const std::string& expected, std::string_view got) {
  throw ConfigError({.what = key, .expected = expected, .got = fmt::format("'{}'", got)});
}

std::string_view trim(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && is_space(text.front()))
    text.remove_prefix(1);
  while (!text.empty() && is_space(text.back()))
    text.remove_suffix(1);
  return text;
}

template <class Number>
Number
parse_number(const std::string& key, std::string_view text, const Range& range, const char* noun) {
  text = trim(text);
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) fail_value(key, noun, text);
  const double wide = static_cast<double>(value);
  if (!std::isfinite(wide) || wide < range.low || wide > range.high) {
    const std::string upper =
        std::isinf(range.high) ? "" : fmt::format(" and at most {}", range.high);
    fail_value(key, fmt::format("{} of at least {}{}", noun, range.low, upper), text);
  }
  return value;
}

bool parse_bool(const std::string& key, std::string_view text) {
  text = trim(text);
  if (text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  fail_value(key, "true or false", text);
}

std::vector<std::string_view> split_list(std::string_view text) {
  std::vector<std::string_view> parts;
  text = trim(text);
  while (!text.empty()) {
    const size_t comma = text.find(',');
    parts.push_back(trim(text.substr(0, comma)));
    text = comma == std::string_view::npos ? "" : text.substr(comma + 1);
  }
  return parts;
}

template <class Value>
std::string join_list(const std::vector<Value>& values) {
  return fmt::format("{}", fmt::join(values, ","));
}

size_t edit_distance(std::string_view left, std::string_view right) {
  std::vector<size_t> row(right.size() + 1);
  for (size_t j = 0; j <= right.size(); ++j)
    row[j] = j;
  for (size_t i = 1; i <= left.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= right.size(); ++j) {
      const size_t replaced = diagonal + (left[i - 1] == right[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

}  // namespace

Field& FieldList::push(std::string key, std::string help, std::string kind) {
  fields_.push_back(
      {.key = section_ + "." + key,
       .help = std::move(help),
       .kind = std::move(kind),
       .parse = {},
       .print = {}});
  return fields_.back();
}

void FieldList::add(std::string key, std::string& value, std::string help) {
  Field& field = push(std::move(key), std::move(help), "TEXT");
  field.parse = [&value](std::string_view text) { value = text; };
  field.print = [&value] { return value; };
}

void FieldList::add(std::string key, bool& value, std::string help) {
  Field& field = push(std::move(key), std::move(help), "BOOL");
  field.parse = [&value, name = field.key](std::string_view text) {
    value = parse_bool(name, text);
  };
  field.print = [&value] { return value ? "true" : "false"; };
}

void FieldList::add(std::string key, std::optional<bool>& value, std::string help) {
  Field& field = push(std::move(key), std::move(help), "BOOL");
  field.parse = [&value, name = field.key](std::string_view text) {
    value = parse_bool(name, text);
  };
  field.print = [&value]() -> std::string {
    if (!value) return "";
    return *value ? "true" : "false";
  };
}

void FieldList::add(std::string key, int64_t& value, std::string help, Range range) {
  Field& field = push(std::move(key), std::move(help), "INT");
  field.parse = [&value, range, name = field.key](std::string_view text) {
    value = parse_number<int64_t>(name, text, range, "a whole number");
  };
  field.print = [&value] { return fmt::format("{}", value); };
}

void FieldList::add(std::string key, double& value, std::string help, Range range) {
  Field& field = push(std::move(key), std::move(help), "FLOAT");
  field.parse = [&value, range, name = field.key](std::string_view text) {
    value = parse_number<double>(name, text, range, "a number");
  };
  field.print = [&value] { return fmt::format("{}", value); };
}

void FieldList::add(std::string key, std::vector<int64_t>& value, std::string help) {
  Field& field = push(std::move(key), std::move(help), "LIST");
  field.parse = [&value, name = field.key](std::string_view text) {
    value.clear();
    for (const auto part : split_list(text))
      value.push_back(parse_number<int64_t>(name, part, {}, "a list of whole numbers"));
  };
  field.print = [&value] { return join_list(value); };
}

void FieldList::add(std::string key, std::vector<double>& value, std::string help, Range range) {
  Field& field = push(std::move(key), std::move(help), "LIST");
  field.parse = [&value, range, name = field.key](std::string_view text) {
    value.clear();
    for (const auto part : split_list(text))
      value.push_back(parse_number<double>(name, part, range, "a list of numbers"));
  };
  field.print = [&value] { return join_list(value); };
}

void FieldList::add(std::string key, std::vector<std::string>& value, std::string help) {
  Field& field = push(std::move(key), std::move(help), "LIST");
  field.parse = [&value](std::string_view text) {
    value.clear();
    for (const auto part : split_list(text))
      value.emplace_back(part);
  };
  field.print = [&value] { return join_list(value); };
}

void FieldList::add_choice(
    std::string key,
    std::string& value,
    std::vector<std::string> choices,
    std::string help) {
  Field& field =
      push(std::move(key), fmt::format("{} ({})", help, fmt::join(choices, ", ")), "TEXT");
  field.parse = [&value, choices, name = field.key](std::string_view text) {
    if (std::find(choices.begin(), choices.end(), text) == choices.end())
      fail_value(name, fmt::format("one of {}", fmt::join(choices, ", ")), text);
    value = text;
  };
  field.print = [&value] { return value; };
}

const Field* FieldList::find(std::string_view key) const {
  const auto found = std::find_if(
      fields_.begin(), fields_.end(), [&](const Field& field) { return field.key == key; });
  return found == fields_.end() ? nullptr : &*found;
}

const Field& FieldList::get(std::string_view key, const std::string& where) const {
  const Field* field = find(key);
  if (field != nullptr) return *field;
  throw ConfigError(
      {.what = "setting",
       .expected = "a known key",
       .got = fmt::format("'{}'", key),
       .where = where,
       .hint = nearest_key(key)});
}

std::string FieldList::nearest_key(std::string_view key) const {
  DS_CHECK(!fields_.empty());
  key = key.substr(0, kMostLetters);
  std::vector<size_t> distances;
  for (const Field& field : fields_)
    distances.push_back(edit_distance(key, field.key));
  const auto nearest = std::min_element(distances.begin(), distances.end()) - distances.begin();
  return fields_[static_cast<size_t>(nearest)].key;
}

}  // namespace draftsmith
