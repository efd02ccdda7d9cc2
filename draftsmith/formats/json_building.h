// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "draftsmith/base/error.h"

namespace draftsmith::formats {

/// Builds a value from the events of nlohmann's parser: in linear time, where its own map that keeps
/// the order of keys searches all of them for each; and within bounds, since a text of a few bytes
/// per entry could make it allocate many times its size.
template <class AnyJson>
class JsonBuilder final : public nlohmann::json_sax<AnyJson> {
 public:
  JsonBuilder(std::string_view text, const std::string& where)
      : where_(where), room_bytes_(kRoomBytes + text.size()) {}

  AnyJson take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(typename AnyJson::number_integer_t value) override { return add(value); }
  bool number_unsigned(typename AnyJson::number_unsigned_t value) override { return add(value); }
  bool number_float(
      typename AnyJson::number_float_t value,
      const typename AnyJson::string_t& /*text*/) override {
    return add(value);
  }
  bool string(typename AnyJson::string_t& value) override { return add(std::move(value)); }
  bool binary(typename AnyJson::binary_t& /*value*/) override { return false; }  // not in text
  bool start_object(size_t /*count*/) override { return open(AnyJson::object()); }
  bool start_array(size_t /*count*/) override { return open(AnyJson::array()); }
  bool key(typename AnyJson::string_t& key) override {
    key_ = std::move(key);
    return true;
  }
  bool end_object() override {
    if constexpr (kIsVector) check_keys(open_.back()->template get_ref<const Object&>());
    open_.pop_back();
    return true;
  }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool parse_error(
      size_t byte,
      const std::string& /*token*/,
      const nlohmann::detail::exception& error) override {
    if (dynamic_cast<const nlohmann::detail::out_of_range*>(&error) != nullptr)
      fail("numbers that a double holds", "a larger one");
    fail("valid JSON", fmt::format("a mistake at byte {}", byte));
    return false;
  }

 private:
  using Object = typename AnyJson::object_t;
  using Array = typename AnyJson::array_t;
  /// Objects that keep the order of their keys are vectors of pairs.
  static constexpr bool kIsVector =
      std::is_base_of_v<std::vector<typename Object::value_type>, Object>;
  static constexpr size_t kMaxDepth = 64;  // more than any file of ours needs
  static constexpr size_t kRoomBytes = size_t{64} << 20;

  template <class Value>
  bool add(Value&& value) {
    add_place() = std::forward<Value>(value);
    return true;
  }

  bool open(AnyJson empty) {
    // Values recurse when they are destroyed, so a hostile file must not nest deeply.
    if (open_.size() >= kMaxDepth) fail(fmt::format("at most {} levels", kMaxDepth), "deeper nesting");
    AnyJson& place = add_place();
    place = std::move(empty);
    open_.push_back(&place);
    return true;
  }

  /// Where the next value goes. A container does not grow while one of its values is open.
  AnyJson& add_place() {
    if (open_.empty()) return root_;
    AnyJson& parent = *open_.back();
    if (parent.is_array()) {
      auto& array = parent.template get_ref<Array&>();
      check_room(array.size(), sizeof(AnyJson));
      return array.emplace_back();
    }
    auto& object = parent.template get_ref<Object&>();
    if constexpr (kIsVector) {
      std::vector<typename Object::value_type>& pairs = object;
      check_room(pairs.size(), sizeof(typename Object::value_type));
      return pairs.emplace_back(std::move(key_), AnyJson()).second;
    } else {
      const auto [place, is_new] = object.emplace(key_, AnyJson());
      if (!is_new) fail_twice(key_);
      return place->second;
    }
  }

  /// A vector may double when it grows by one.
  void check_room(size_t count, size_t entry_bytes) const {
    const size_t most = room_bytes_ / (2 * entry_bytes);
    if (count >= most) fail(fmt::format("at most {} entries in a list or object", most), "more");
  }

  /// A key that stands twice is refused: which of the two counts is a guess.
  void check_keys(const Object& object) const {
    std::vector<std::string_view> keys;
    keys.reserve(object.size());
    for (const auto& [key, value] : object)
      keys.push_back(key);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end()) fail_twice(*twice);
  }

  [[noreturn]] void fail_twice(std::string_view key) const {
    fail("each key once in an object", fmt::format("'{}' twice", key));
  }
  [[noreturn]] void fail(std::string expected, std::string got) const {
    throw DataError(
        {.what = "JSON",
         .expected = std::move(expected),
         .got = std::move(got),
         .where = where_});
  }

  std::string where_;
  size_t room_bytes_;
  AnyJson root_;
  std::vector<AnyJson*> open_;  // objects and arrays, the innermost last
  std::string key_;             // of the value to come
};

/// Parses text; `where` names it in messages. Errors: DataError.
template <class AnyJson>
AnyJson build_json(std::string_view text, const std::string& where) {
  JsonBuilder<AnyJson> builder(text, where);
  AnyJson::sax_parse(text, &builder);
  return builder.take();
}

}  // namespace draftsmith::formats
