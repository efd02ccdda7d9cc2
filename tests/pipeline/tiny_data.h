// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "draftsmith/pipeline/batch_feed.h"

#include "tests/support/temp_folder.h"
#include "tests/support/tiny_models.h"

namespace draftsmith::testing {

/// 10 sequences for targets/qwen3-tiny, 2 in a batch: epochs of 5 batches.
inline data::BatchSource make_ten_sequence_source() {
  std::vector<data::TokenSequence> sequences;
  for (uint64_t i = 0; i < 10; ++i)
    sequences.push_back(make_sequence(12 + static_cast<int64_t>(i % 4), 4, i));
  data::DataSettings settings;
  settings.max_sequences_per_batch = 2;
  settings.num_anchors = 8;
  const TempFolder folder;
  const auto path = write_dataset_folder(folder, "d", sequences);
  // The mapped shard stays readable after the folder is gone.
  return data::BatchSource(data::TokenDataset::open(path, ""), settings, 211);
}

inline pipeline::BatchRecipe tiny_recipe() { return {{4, 205, 10}, {0, 1}, torch::kFloat}; }

}  // namespace draftsmith::testing
