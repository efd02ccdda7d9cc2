// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/app/run_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "draftsmith/app/toml.h"
#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"
#include "draftsmith/base/replace_all.h"
#include "draftsmith/formats/json.h"

namespace draftsmith::app {
namespace {

/// toml++ destroys its tables by recursion, and a key of a file this long ("a.a.a") nests no deeper
/// than any thread's stack allows.
constexpr uintmax_t kMaxFileBytes = 64 << 10;
constexpr int kMaxLevels = 4;  // of lists and tables in a value

formats::Json
as_json(const toml::node& node, const std::string& key, const std::string& where, int levels) {
  const auto fail = [&](std::string expected, std::string got) {
    throw ConfigError(
        {.what = key, .expected = std::move(expected), .got = std::move(got), .where = where});
  };
  if (levels == 0) fail(fmt::format("at most {} levels", kMaxLevels), "deeper nesting");
  if (const auto* array = node.as_array()) {
    auto list = formats::Json::array();
    for (const auto& item : *array)
      list.push_back(as_json(item, key, where, levels - 1));
    return list;
  }
  if (const auto* table = node.as_table()) {
    auto object = formats::Json::object();
    for (const auto& [name, value] : *table)
      object[std::string(name.str())] = as_json(value, key, where, levels - 1);
    return object;
  }
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return number->get();
  if (const auto* number = node.as_floating_point()) return number->get();
  fail("texts and numbers", "something else");
  return {};
}

bool holds_tables(const toml::array& array) {
  return std::any_of(array.begin(), array.end(), [](const auto& item) { return item.is_table(); });
}

/// A TOML value as the text that a field parses: a list of tables is JSON.
std::string as_text(const toml::node& node, const std::string& key, const std::string& where) {
  if (node.is_array() && holds_tables(*node.as_array()))
    return as_json(node, key, where, kMaxLevels).dump();
  if (const auto* array = node.as_array()) {
    std::vector<std::string> items;
    for (const auto& item : *array)
      items.push_back(as_text(item, key, where));
    return fmt::format("{}", fmt::join(items, ","));
  }
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return fmt::format("{}", number->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  throw ConfigError(
      {.what = key,
       .expected = "a text, number, true, false or list",
       .got = "something else",
       .where = where});
}

/// JSON's escapes are TOML's, but for the character 127, which TOML wants escaped.
std::string quote(const std::string& key, const std::string& text) {
  try {
    return replace_all(formats::Json(text).dump(), "\x7f", "\\u007f");
  } catch (const formats::Json::type_error&) {
    throw ConfigError({.what = key, .expected = "a text in UTF-8", .got = "other bytes"});
  }
}

/// Whether a number of a list may stand without quotes: as fmt prints it, and no text beside it.
bool is_toml_number(const std::string& text) {
  const size_t first = text.rfind('-', 0) == 0 ? 1 : 0;
  const auto is_digit = [&](size_t i) {
    return i < text.size() && text[i] >= '0' && text[i] <= '9';
  };
  const auto parses = [&](auto value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size();
  };
  if (!is_digit(first) || (text[first] == '0' && is_digit(first + 1))) return false;
  if (text.find_first_of(".e") == text.npos) return parses(int64_t{});
  const size_t dot = text.find('.');
  return parses(double{}) && (dot == text.npos || is_digit(dot + 1));
}

std::string toml_value(const Field& field) {
  const std::string text = field.print();
  if (field.kind == "TEXT") return quote(field.key, text);
  if (field.kind != "LIST") return text;
  std::vector<std::string> items;
  std::istringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) {
    items.push_back(is_toml_number(item) ? item : quote(field.key, item));
  }
  return fmt::format("[{}]", fmt::join(items, ", "));
}

}  // namespace

FieldList list_fields(RunConfig& config) {
  FieldList fields;
  model::add_fields(fields, config.target);
  model::add_fields(fields, config.drafter);
  data::add_fields(fields, config.data);
  train::add_fields(fields, config.loss);
  model::add_fields(fields, config.attention);
  memory::add_fields(fields, config.memory);
  train::add_fields(fields, config.train);
  eval::add_fields(fields, config.eval);
  eval::add_fields(fields, config.generate);
  pipeline::add_fields(fields, config.extract);
  pipeline::add_fields(fields, config.pipeline);
  return fields;
}

std::map<std::string, std::string> read_settings_text(const std::filesystem::path& path) {
  if (!std::filesystem::is_regular_file(path)) {
    throw ConfigError(
        {.what = "--config",
         .expected = "a settings file",
         .got = "no such file",
         .where = path.string()});
  }
  if (const auto bytes = std::filesystem::file_size(path); bytes > kMaxFileBytes) {
    throw ConfigError(
        {.what = "settings file",
         .expected = fmt::format("at most {} bytes", kMaxFileBytes),
         .got = fmt::format("{}", bytes),
         .where = path.string()});
  }
  toml::table table;
  try {
    table = toml::parse(read_file(path), path.string());
  } catch (const toml::parse_error& error) {
    throw ConfigError(
        {.what = "settings file",
         .expected = "valid TOML",
         .got = std::string(error.description()),
         .where = fmt::format("{}, line {}", path.string(), error.source().begin.line)});
  }
  std::map<std::string, std::string> settings;
  for (const auto& [section, node] : table) {
    const std::string prefix(section.str());
    const auto* keys = node.as_table();
    if (keys == nullptr) {  // never a known key, and named as such by who knows the keys
      settings[prefix] = as_text(node, prefix, path.string());
      continue;
    }
    for (const auto& [name, value] : *keys) {
      const std::string key = fmt::format("{}.{}", prefix, name.str());
      settings[key] = as_text(value, key, path.string());
    }
  }
  return settings;
}

void read_settings_file(const std::filesystem::path& path, const FieldList& fields) {
  for (const auto& [key, value] : read_settings_text(path))
    fields.get(key, path.string()).parse(value);
}

std::string write_settings(const FieldList& fields) {
  std::string text;
  std::string section;
  for (const Field& field : fields.fields()) {
    const size_t dot = field.key.find('.');
    if (field.key.substr(0, dot) != section) {
      section = field.key.substr(0, dot);
      text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section);
    }
    if (field.kind == "BOOL" && field.print().empty()) continue;  // absent
    text += fmt::format("{} = {}\n", field.key.substr(dot + 1), toml_value(field));
  }
  return text;
}

std::map<std::string, std::string> settings_as_text(const FieldList& fields) {
  std::map<std::string, std::string> text;
  for (const Field& field : fields.fields())
    text[field.key] = field.print();
  return text;
}

std::string make_run_name(const RunConfig& config, const formats::DrafterConfig& drafter) {
  std::string cap = fmt::format("{}", config.loss.cap_weight);
  cap.erase(std::remove(cap.begin(), cap.end(), '.'), cap.end());
  return fmt::format(
      "exp{}-g{}-bs{}-a{}{}-kl{}-cap{}", config.train.eval_method == "tree" ? "-ddtree" : "",
      config.loss.decay_gamma, drafter.block_size, config.data.num_anchors,
      drafter.has_sliding_layers() ? "-swa" : "", std::llround(100 * config.loss.kl_weight), cap);
}

}  // namespace draftsmith::app
