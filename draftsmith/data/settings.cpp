// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/settings.h"

#include <algorithm>

#include "draftsmith/base/error.h"
#include "draftsmith/formats/json.h"

namespace draftsmith::data {
namespace {

[[noreturn]] void fail_path(const std::string& expected, const std::string& got) {
  throw ConfigError(
      {.what = "data.path",
       .expected = expected,
       .got = got,
       .hint = R"(--data.path='[{"path": "a", "weight": 2}, {"path": "b", "weight": 1}]')"});
}

/// Weights that no quotient of two takes out of a double's range.
bool is_weight(const formats::Json& value) {
  return value.is_number() && value.get<double>() >= 1e-15 && value.get<double>() <= 1e15;
}

formats::Json parse_list(const std::string& text) {
  try {
    return formats::parse_json(text, "data.path");
  } catch (const DataError& error) {
    fail_path("a folder or a list", error.what());
  }
}

WeightedPath read_dataset(const formats::Json& item) {
  if (item.is_string()) return {item.get<std::string>(), 0};
  if (!item.is_object() || !item.contains("path") || !item["path"].is_string())
    fail_path("a list of folders or of {path, weight}", item.dump());
  WeightedPath dataset{item["path"].get<std::string>(), 0};
  for (const auto& [key, value] : item.items()) {
    if (key == "path") continue;
    if (key != "weight") fail_path("only path and weight", "'" + key + "'");
    if (!is_weight(value)) fail_path("a positive weight of at most 1e15", value.dump());
    dataset.weight = value.get<double>();
  }
  return dataset;
}

}  // namespace

std::vector<WeightedPath> list_datasets(const DataSettings& settings) {
  if (settings.path.empty() || settings.path.front() != '[') return {{settings.path, 0}};
  const auto list = parse_list(settings.path);
  if (!list.is_array() || list.empty()) fail_path("a folder or a list", settings.path);
  std::vector<WeightedPath> datasets;
  for (const auto& item : list)
    datasets.push_back(read_dataset(item));
  const auto has_weight = [](const WeightedPath& dataset) { return dataset.weight > 0; };
  const auto count = std::count_if(datasets.begin(), datasets.end(), has_weight);
  if (count != 0 && count != static_cast<int64_t>(datasets.size()))
    fail_path("a weight for every dataset or for none", settings.path);
  return datasets;
}

void add_fields(FieldList& fields, DataSettings& settings) {
  fields.begin_section("data");
  fields.add(
      "path", settings.path,
      "dataset: a folder written by save_to_disk or generate; or a list of {path, weight} (JSON on "
      "the command line), whose batches are mixed in these proportions");
  fields.add("split", settings.split, "split to read where the folder has several");
  fields.add_choice(
      "batching", settings.batching, {"bucket", "pack"},
      "how batches are made: of sequences of similar length, or of rows of max_length filled with "
      "whole sequences that do not see each other");
  fields.add_choice(
      "overlong", settings.overlong, {"cut", "skip", "window"},
      "what becomes of sequences longer than max_length: their beginning is trained, they are left "
      "out, or all of their windows of max_length are trained");
  fields.add("max_length", settings.max_length, "longest sequence, in tokens", {2});
  fields.add(
      "tokens_per_batch", settings.tokens_per_batch,
      "most tokens of a batch: its sequences x the longest of them, padding included", {2});
  fields.add(
      "num_buckets", settings.num_buckets, "groups of similar length that batches come from",
      kAtLeastOne);
  fields.add(
      "max_sequences_per_batch", settings.max_sequences_per_batch,
      "most sequences of a batch; when packed, most rows", kAtLeastOne);
  fields.add(
      "num_anchors", settings.num_anchors,
      "draft blocks of a batch, drawn uniformly from all its eligible positions", kAtLeastOne);
  fields.add(
      "anchors_per_sequence", settings.anchors_per_sequence,
      "most draft blocks that one sequence offers; 0 = no cap", kAtLeastZero);
  fields.add(
      "static_shapes", settings.static_shapes,
      "pad batches to num_buckets numbers of tokens and four of draft blocks, so that nothing is "
      "prepared for each batch anew; the loss is the same");
  fields.add(
      "seed", settings.seed, "seed of the order of sequences and of the anchors", kAtLeastZero);
  fields.add(
      "held_out", settings.held_out,
      "share of the sequences that is never trained on, for the evaluation during training",
      {0, 0.5});
}

}  // namespace draftsmith::data
