// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/app/report_evaluation.h"

#include <fmt/format.h>

#include "draftsmith/base/error.h"

namespace draftsmith::app {
using formats::Json;
using formats::JsonObject;
namespace {

constexpr int64_t kMostEntries = 10'000;  // of a list or a sweep

/// A list of numbers, checked.
Json numbers(const JsonObject& json, const std::string& key) {
  const Json list = json.value().value(key, Json());
  bool is_right = list.is_array() && list.size() <= kMostEntries;
  for (size_t i = 0; is_right && i < list.size(); ++i)
    is_right = list[i].is_number();
  if (is_right) return list;
  throw DataError(
      {.what = key,
       .expected = "a list of numbers, as eval --json writes it",
       .got = list.is_array() ? "another list" : list.type_name(),
       .where = json.where()});
}

Json set_as_json(const JsonObject& set) {
  Json result = Json::object();
  for (const char* key : {"responses", "rounds", "tokens"})
    result[key] = set.integer(key, 0, INT64_MAX);
  for (const char* key :
       {"acceptance_length", "mean_per_response", "plain_tokens_per_s", "speculative_tokens_per_s",
        "speedup"})
    result[key] = set.number(key);
  for (const char* key : {"acceptance_length_95", "by_slot", "histogram"})
    result[key] = numbers(set, key);
  const JsonObject seconds = set.object("seconds");
  for (const char* key : {"prefill", "draft", "tree", "verify", "commit"})
    result["seconds"][key] = seconds.number(key);
  return result;
}

Json method_as_json(const JsonObject& method) {
  Json result = {{"method", method.text("method")}, {"total", set_as_json(method)}};
  if (method.has("tree_budget")) result["tree_budget"] = method.integer("tree_budget", 0, INT64_MAX);
  if (method.has("drafter")) result["drafter"] = method.text("drafter");
  result["is_identical"] = method.has("is_identical")
                               ? Json(method.boolean_or("is_identical", false))
                               : Json();  // not compared
  result["sets"] = Json::object();
  const JsonObject sets = method.object("sets");
  for (const auto& [name, set] : sets.value().items())
    result["sets"][name] = set_as_json(JsonObject(set, fmt::format("{}, set {}", sets.where(), name)));
  return result;
}

}  // namespace

Json evaluation_as_json(const std::filesystem::path& file) {
  const auto json = JsonObject::from_file(file);
  Json result = {
      {"name", file.stem().string()},
      {"file", file.string()},
      {"methods", Json::array({method_as_json(json)})},
      {"sweep", Json::array()}};
  if (json.has("compared")) {
    result["methods"].push_back(method_as_json(json.object("compared")));
    result["difference"] = json.number("difference");
    result["difference_95"] = numbers(json, "difference_95");
  }
  if (!json.has("sweep")) return result;
  const Json& sweep = json.value().at("sweep");
  if (!sweep.is_array() || sweep.size() > kMostEntries) {
    throw DataError(
        {.what = "sweep",
         .expected = "a list of methods",
         .got = sweep.type_name(),
         .where = json.where()});
  }
  result["fastest"] = json.text("fastest");
  for (const Json& method : sweep)
    result["sweep"].push_back(method_as_json(JsonObject(method, json.where() + ", sweep")));
  return result;
}

}  // namespace draftsmith::app
