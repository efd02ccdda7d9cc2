// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <utility>
#include <vector>

#include "draftsmith/data/batch_source.h"

namespace draftsmith::train {

/// A step that was not applied because its loss or gradient was not finite, and the batches that
/// made it: all that it takes to run them again.
struct BadStep {
  int64_t weights_step = 0;  // steps that the weights had made
  int64_t first_batch = 0;   // its number in the run, counted from 0
  int64_t seed = 0;          // data.seed, from which the anchors follow
  double loss = 0;
  double gradient_norm = 0;
  std::vector<std::pair<data::DataCursor, data::TokenBatch>> batches = {};
};

/// Writes `RUN/bad_batches/step-N-batch-M.json`: step, seed, and for every batch its cursor, the
/// numbers of its sequences and their token ids. Returns the path.
std::filesystem::path write_bad_step(const std::filesystem::path& run_folder, const BadStep& step);

/// What it takes to run such a file's batches again.
struct ReplayFile {
  std::filesystem::path run_folder;
  int64_t weights_step = 0;
  std::vector<data::DataCursor> cursors;
  std::vector<std::vector<int64_t>> sequences;  // of each batch
};

/// Errors: DataError for a file that is none.
ReplayFile read_bad_step(const std::filesystem::path& file);

}  // namespace draftsmith::train
