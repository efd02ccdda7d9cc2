// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "draftsmith/app/command_line.h"
#include "draftsmith/app/report_evaluation.h"
#include "draftsmith/app/report_page.h"
#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"
#include "draftsmith/base/log.h"
#include "draftsmith/base/replace_all.h"
#include "draftsmith/formats/json.h"

namespace draftsmith::app {
namespace fs = std::filesystem;
using formats::Json;
namespace {

constexpr size_t kMostPoints = 1000;  // of a curve
constexpr const char* kMarker = "<meta name=\"generator\" content=\"draftsmith report\">";
constexpr const char* kSlots = "accuracy_by_slot";
constexpr const char* kWait = "wait";

/// The lines of metrics.jsonl; one that a running or killed process left unfinished is skipped.
std::vector<Json> read_lines(const fs::path& run) {
  const fs::path file = run / "metrics.jsonl";
  std::vector<Json> lines;
  std::istringstream stream(read_file(file));
  for (std::string text; std::getline(stream, text);) {
    auto line = formats::parse_json_or_null(text);
    if (line.is_object() && line.value("step", Json()).is_number()) lines.push_back(line);
  }
  if (!lines.empty()) return lines;
  throw DataError(
      {.what = "report",
       .expected = "at least one line of metrics",
       .got = "none",
       .where = file.string()});
}

/// At most some kMostPoints lines, evenly spread: the last one and all evaluations among them.
std::vector<Json> thin_out(std::vector<Json> lines) {
  const size_t stride = (lines.size() + kMostPoints - 1) / kMostPoints;
  std::vector<Json> kept;
  for (size_t i = 0; i < lines.size(); ++i) {
    const bool is_kept = i % stride == 0 || i + 1 == lines.size() || lines[i].contains("eval_loss");
    if (is_kept) kept.push_back(std::move(lines[i]));
  }
  return kept;
}

Json number_or_null(const Json& value) { return value.is_number() ? value : Json(); }

Json slots_of(const Json& line) {
  const Json slots = line.value(kSlots, Json());
  return slots.is_array() ? slots : Json::array();
}

Json waits_of(const Json& line) {
  const Json waits = line.value(kWait, Json());
  return waits.is_object() ? waits : Json::object();
}

/// Mean of each slot's accuracy over the last tenth of the lines.
Json mean_slots(const std::vector<Json>& lines) {
  std::vector<double> sums;
  size_t count = 0;
  for (size_t i = lines.size() - (lines.size() + 9) / 10; i < lines.size(); ++i) {
    const Json slots = slots_of(lines[i]);
    sums.resize(std::max(sums.size(), slots.size()));
    for (size_t k = 0; k < slots.size(); ++k)
      sums[k] += slots[k].is_number() ? slots[k].get<double>() : 0;
    ++count;
  }
  for (double& sum : sums)
    sum /= static_cast<double>(count);
  return sums;
}

/// A run as report_page.html reads it: steps, and for each figure its value at each of them.
Json run_as_json(const fs::path& folder) {
  if (!fs::exists(folder / "settings.toml")) {
    throw DataError(
        {.what = "report",
         .expected = "the folder of a run",
         .got = "no settings.toml",
         .where = folder.string()});
  }
  const auto settings = read_settings_text(folder / "settings.toml");
  const auto all = read_lines(folder);
  const Json by_slot = mean_slots(all);
  const auto lines = thin_out(all);
  std::set<std::string> keys;
  for (const Json& line : lines)
    for (const auto& [key, value] : line.items())
      if (value.is_number()) keys.insert(key);
  Json values = Json::object();
  for (const std::string& key : keys)
    for (const Json& line : lines)
      values[key].push_back(number_or_null(line.value(key, Json())));
  Json slots = Json::array();
  for (size_t k = 0; k < by_slot.size(); ++k) {
    Json slot = Json::array();
    for (const Json& line : lines) {
      const Json of_line = slots_of(line);
      slot.push_back(k < of_line.size() ? number_or_null(of_line[k]) : Json());
    }
    slots.push_back(slot);
  }
  Json waits = Json::object();  // worker -> share at each line
  for (const Json& line : lines) {
    const Json of_line = waits_of(line);
    for (const auto& [worker, share] : of_line.items())
      waits[worker] = Json::array();
  }
  for (auto& [worker, shares] : waits.items())
    for (const Json& line : lines)
      shares.push_back(number_or_null(waits_of(line).value(worker, Json())));
  const auto name = settings.find("train.name");
  return {
      {"name",
       name == settings.end() || name->second.empty() ? folder.filename().string() : name->second},
      {"folder", folder.string()},
      {"settings", settings},
      {"steps", values["step"]},
      {"values", values},
      {"waits", waits},
      {kSlots, by_slot},
      {"slots", slots}};
}

/// Runs of one name get their folder's name behind it.
void tell_names_apart(Json& runs) {
  std::map<std::string, int> count;
  for (const Json& run : runs)
    ++count[run.at("name").get<std::string>()];
  for (Json& run : runs) {
    const auto name = run.at("name").get<std::string>();
    if (count[name] > 1)
      run["name"] = fmt::format(
          "{} ({})", name, fs::path(run.at("folder").get<std::string>()).filename().string());
  }
}

/// The page with runs and evaluations in it. No text of theirs can end the script element it stands in.
std::string fill_page(const Json& shown) {
  const std::string json = replace_all(
      shown.dump(-1, ' ', false, Json::error_handler_t::replace), "<", "\\u003c");
  std::string page = kReportPage;
  const std::string place = "__RUNS__";
  return page.replace(page.find(place), place.size(), json);
}

void refuse_foreign_file(const fs::path& file) {
  if (!fs::exists(file) || read_file(file).find(kMarker) != std::string::npos) return;
  throw ConfigError(
      {.what = "--out",
       .expected = "a new file or a report",
       .got = "another file",
       .where = file.string()});
}

fs::path choose_output(const Flags& flags) {
  if (!flags.out.empty()) return flags.out;
  const fs::path first = flags.runs.front();
  return fs::is_regular_file(first) ? fs::path(first).replace_extension(".html")
                                    : first / "report.html";
}

}  // namespace

void run_report(const Flags& flags) {
  Json runs = Json::array();
  Json evaluations = Json::array();
  for (const std::string& name : flags.runs) {
    fs::path path = fs::absolute(name).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();
    if (fs::is_regular_file(path)) {
      evaluations.push_back(evaluation_as_json(path));
    } else {
      runs.push_back(run_as_json(path));
    }
  }
  tell_names_apart(runs);
  const fs::path out = choose_output(flags);
  refuse_foreign_file(out);
  write_file_atomically(out, fill_page({{"runs", runs}, {"evaluations", evaluations}}));
  print_result("{}", out.string());
}

}  // namespace draftsmith::app
