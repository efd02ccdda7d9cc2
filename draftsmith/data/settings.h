// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "draftsmith/base/fields.h"

namespace draftsmith::data {

struct DataSettings {
  std::string path;
  std::string split;
  std::string batching = "bucket";
  std::string overlong = "cut";
  int64_t max_length = 8192;         // tokens
  int64_t tokens_per_batch = 49152;  // rows x longest row, padding included
  int64_t num_buckets = 6;
  int64_t max_sequences_per_batch = 64;
  int64_t num_anchors = 1024;        // blocks per batch
  int64_t anchors_per_sequence = 0;  // 0 = no cap
  bool static_shapes = false;
  int64_t seed = 0;
  double held_out = 0;  // share of the sequences
};

/// One dataset of `data.path`.
struct WeightedPath {
  std::string path;
  double weight = 0;  // share of the batches, up to a common factor; 0 in all = by size
};

/// The datasets of `data.path`: a folder, or a JSON list of folders or of
/// {"path": ..., "weight": ...}, which is also what a list in a settings file becomes.
/// Errors: ConfigError for another form, a weight that is not positive, or weights for some only.
std::vector<WeightedPath> list_datasets(const DataSettings& settings);

void add_fields(FieldList& fields, DataSettings& settings);

}  // namespace draftsmith::data
