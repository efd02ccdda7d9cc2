// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/run_log.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/formats/json.h"

namespace draftsmith::train {
namespace fs = std::filesystem;
using formats::Json;
namespace {

constexpr const char* kMetricsFile = "metrics.jsonl";

void drop_lines_after(const fs::path& path, int64_t step) {
  if (!fs::exists(path)) return;
  std::istringstream lines(read_file(path));
  std::string kept;
  std::string line;
  while (std::getline(lines, line)) {
    const auto json = formats::parse_json_or_null(line);
    // A line cut short by a crash does not parse and is dropped too.
    const Json number = json.is_object() ? json.value("step", Json()) : Json();
    if (number.is_number_integer() && number.get<int64_t>() <= step) kept += line + "\n";
  }
  write_file_atomically(path, kept);
}

/// Lists in the order of data.path; null for a dataset of which these steps had no batch.
void add_sources(Json& json, const std::vector<MetricSums>& by_source) {
  for (const MetricSums& sums : by_source) {
    const bool is_seen = sums.blocks > 0;
    const auto push = [&](const char* key, double value) {
      json[key].push_back(is_seen ? Json(value) : Json());
    };
    push("source_loss", sums.loss());
    push("source_accuracy", sums.accuracy());
    push("source_expected_acceptance", sums.expected_acceptance());
    json["source_tokens"].push_back(sums.tokens);
  }
}

void add_expected_tokens(Json& json, const std::string& prefix, const MetricSums& sums) {
  json[prefix + "chain_expected_tokens"] = sums.chain_expected_tokens();
  if (sums.expected.tree_blocks == 0) return;
  json[prefix + "tree_expected_tokens"] = sums.tree_expected_tokens();
  json[prefix + "tree_expected_acceptance"] = sums.tree_expected_acceptance();
}

Json as_json(const LoggedSteps& line) {
  const MetricSums& sums = line.sums;
  const double ms_per_step = 1000 / static_cast<double>(line.steps);
  Json json = {
      {"step", line.step},
      {"loss", sums.loss()},
      {"ce", sums.ce()},
      {"kl", sums.kl()},
      {"cap", sums.cap()},
      {"accuracy", sums.accuracy()},
      {"accuracy_by_slot", sums.accuracy_by_slot()},
      {"expected_acceptance", sums.expected_acceptance()},
      {"empty_blocks", sums.empty_blocks()},
      {"lr", line.lr},
      {"grad_norm", line.gradient_norm},
      {"tokens_per_s", static_cast<double>(sums.tokens) / line.seconds},
      {"step_ms", ms_per_step * line.seconds},
      {"data_ms", ms_per_step * sums.times.data},
      {"target_ms", ms_per_step * sums.times.target},
      {"forward_ms", ms_per_step * sums.times.forward},
      {"head_ms", ms_per_step * sums.times.head},
      {"backward_ms", ms_per_step * sums.times.backward},
      {"exchange_ms", ms_per_step * sums.times.exchange},
      {"optimizer_ms", ms_per_step * sums.times.optimizer},
      {"peak_bytes", line.peak_bytes}};
  add_expected_tokens(json, "", sums);
  add_sources(json, line.by_source);
  for (const auto& [worker, time] : line.workers) {
    json["wait"][worker] = time.waiting_share();
    if (time.meeting > 0) json["wait"][worker + " for others"] = time.meeting_share();
  }
  if (line.evaluation) {
    const MetricSums& held_out = *line.evaluation;
    json["eval_loss"] = held_out.loss();
    json["eval_accuracy"] = held_out.accuracy();
    json["eval_accuracy_by_slot"] = held_out.accuracy_by_slot();
    json["eval_expected_acceptance"] = held_out.expected_acceptance();
    add_expected_tokens(json, "eval_", held_out);
  }
  return json;
}

/// TensorBoard groups its charts by what stands before the slash.
std::string tag_of(const std::string& key) {
  if (key.rfind("eval_", 0) == 0) return "eval/" + key.substr(5);
  const bool is_time = key.size() > 3 && key.substr(key.size() - 3) == "_ms";
  return (is_time ? "time/" : "train/") + key;
}

formats::Scalars as_scalars(const Json& json) {
  formats::Scalars scalars;
  for (const auto& [key, value] : json.items()) {
    if (key == "step") continue;
    if (value.is_number()) scalars.emplace_back(tag_of(key), value.get<float>());
    if (value.is_object())
      for (const auto& [part, number] : value.items())
        scalars.emplace_back(key + "/" + part, number.get<float>());
    if (!value.is_array()) continue;
    for (size_t k = 0; k < value.size(); ++k)
      if (value[k].is_number())
        scalars.emplace_back(tag_of(key) + "/" + std::to_string(k + 1), value[k].get<float>());
  }
  return scalars;
}

}  // namespace

RunLog::RunLog(fs::path run_folder, int64_t step)
    : run_folder_(std::move(run_folder)), events_(run_folder_, step) {
  drop_lines_after(run_folder_ / kMetricsFile, step);
}

void RunLog::write(const LoggedSteps& line) {
  const Json json = as_json(line);
  const fs::path path = run_folder_ / kMetricsFile;
  std::ofstream stream(path, std::ios::app);
  stream << json.dump() << "\n" << std::flush;
  if (!stream) fail_write(path, std::strerror(errno));
  events_.write(line.step, as_scalars(json));
}

}  // namespace draftsmith::train
