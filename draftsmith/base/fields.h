// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace draftsmith {

/// One setting, seen through text: the same entry serves the command line, the settings file,
/// `--help`, the resolved print and the comparison on resume.
struct Field {
  std::string key;                              // "train.max_steps"
  std::string help;                             // with the default value written by `print`
  std::string kind;                             // "INT", "FLOAT", "TEXT", "BOOL", "LIST"
  std::function<void(std::string_view)> parse;  // throws ConfigError naming the key
  std::function<std::string()> print;           // as `parse` reads it; "" for an absent value
};

/// Values allowed for a number; both ends included.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
};

inline constexpr Range kAtLeastZero{0};
inline constexpr Range kAtLeastOne{1};
inline constexpr Range kShare{0, 1};

/// Collects the fields of settings structs. Each struct has one
/// `void add_fields(FieldList&, Settings&)` beside it, and nothing else knows its keys.
class FieldList {
 public:
  /// Keys that follow stand in this section: "train" gives "train.lr".
  void begin_section(std::string name) { section_ = std::move(name); }

  void add(std::string key, std::string& value, std::string help);
  void add(std::string key, bool& value, std::string help);
  void add(std::string key, int64_t& value, std::string help, Range range = {});
  void add(std::string key, double& value, std::string help, Range range = {});
  void add(std::string key, std::vector<int64_t>& value, std::string help);
  void add(std::string key, std::vector<double>& value, std::string help, Range range = {});
  void add(std::string key, std::vector<std::string>& value, std::string help);
  void add(std::string key, std::optional<bool>& value, std::string help);
  /// `choices` are the only values that are accepted.
  void add_choice(
      std::string key,
      std::string& value,
      std::vector<std::string> choices,
      std::string help);

  const std::vector<Field>& fields() const { return fields_; }

  /// Nullptr if there is none.
  const Field* find(std::string_view key) const;

  /// Errors: ConfigError with the nearest known key if there is none.
  const Field& get(std::string_view key, const std::string& where) const;

  /// The known key that differs in the fewest letters.
  std::string nearest_key(std::string_view key) const;

 private:
  Field& push(std::string key, std::string help, std::string kind);

  std::string section_;
  std::vector<Field> fields_;
};

}  // namespace draftsmith
