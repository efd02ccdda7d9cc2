// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "draftsmith/data/batch_source.h"
#include "draftsmith/data/feature_store.h"
#include "draftsmith/data/feature_writer.h"
#include "draftsmith/model/target.h"

namespace draftsmith::pipeline {

struct ExtractCounts {
  int64_t sequences = 0;
  int64_t tokens = 0;
};

/// Runs the target over the batches of the source's first epoch, as training would see them, and
/// hands the states of the sequences to the writer. Sequences that `done` has are left out.
/// `on_batch` is told of what was written and of what was there already.
/// The source has no windows of sequences (data.overlong): those have no single record.
void extract_features(
    const model::Target& target,
    data::BatchSource& source,
    const std::vector<int64_t>& layer_ids,
    const data::FeatureStore& done,
    data::FeatureWriter& writer,
    const std::function<void(const ExtractCounts& written, const ExtractCounts& kept)>& on_batch);

}  // namespace draftsmith::pipeline
