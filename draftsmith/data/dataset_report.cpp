// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/dataset_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>

#include "draftsmith/base/error.h"
#include "draftsmith/base/progress.h"

namespace draftsmith::data {
namespace {

/// FNV-1a over whole ids; equal keys are compared in full.
uint64_t hash_ids(const std::vector<int64_t>& ids) {
  uint64_t state = 0xcbf29ce484222325ULL + ids.size();
  for (const int64_t id : ids) {
    state = (state ^ static_cast<uint64_t>(id)) * 0x100000001b3ULL;
    state ^= state >> 29;
  }
  return state;
}

}  // namespace

int64_t DatasetReport::length_at(double share) const {
  if (lengths.empty()) return 0;
  const double place = std::ceil(share * static_cast<double>(lengths.size())) - 1;
  return lengths[static_cast<size_t>(std::max(0.0, place))];
}

DatasetReport inspect_dataset(const TokenDataset& dataset, int64_t vocab_size) {
  DatasetReport report;
  report.sequences = dataset.num_sequences();
  std::unordered_map<uint64_t, int64_t> first_with;  // hash -> row
  Progress progress("looking at " + dataset.folder().string(), report.sequences, "sequences");
  for (int64_t i = 0; i < report.sequences; ++i) {
    if (i % 64 == 0) progress.update(i);
    TokenSequence sequence;
    try {
      sequence = dataset.sequence(i);
    } catch (const DataError& error) {
      report.unreadable.add(error.what());
      continue;
    }
    const auto& [ids, mask] = sequence;
    const std::string name = fmt::format("row {}", i);
    const auto supervised = std::count(mask.begin(), mask.end(), uint8_t{1});
    report.tokens += static_cast<int64_t>(ids.size());
    report.supervised_tokens += supervised;
    report.lengths.push_back(static_cast<int64_t>(ids.size()));
    if (ids.empty()) {
      report.empty.add(name);
      continue;
    }
    if (supervised == 0) {
      report.unsupervised.add(name);
    } else if (find_first_anchor(mask) < 0) {
      report.no_anchor.add(name);
    }
    if (supervised == static_cast<int64_t>(ids.size())) report.all_supervised.add(name);
    const auto bad = std::find_if(
        ids.begin(), ids.end(), [&](int64_t id) { return id < 0 || id >= vocab_size; });
    if (bad != ids.end())
      report.outside.add(fmt::format("{}, token {}: id {}", name, bad - ids.begin(), *bad));
    const auto [known, is_new] = first_with.emplace(hash_ids(ids), i);
    if (!is_new && dataset.sequence(known->second).ids == ids)
      report.duplicates.add(fmt::format("{} is row {} again", name, known->second));
  }
  std::sort(report.lengths.begin(), report.lengths.end());
  if (progress.seconds() > 1) {
    progress.update(report.sequences);
    progress.finish();
  }
  return report;
}

}  // namespace draftsmith::data
