// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/extract.h"

#include <algorithm>

#include "draftsmith/base/error.h"

namespace draftsmith::pipeline {

void extract_features(
    const model::Target& target,
    data::BatchSource& source,
    const std::vector<int64_t>& layer_ids,
    const data::FeatureStore& done,
    data::FeatureWriter& writer,
    const std::function<void(const ExtractCounts& written, const ExtractCounts& kept)>& on_batch) {
  const data::BlockRule rule{2, 0, 0};  // blocks are not used here
  for (data::DataCursor cursor{0, 0}; cursor.batch < source.batches_of_epoch(0);) {
    const auto batch = source.read(cursor, rule);
    cursor = batch.next;
    const auto& parts = batch.tokens.parts;
    ExtractCounts counts;
    for (const auto& part : parts) {
      DS_CHECK(part.sequence_begin == 0);
      counts.sequences += 1;
      counts.tokens += part.length;
    }
    // Shards hold whole batches, so a batch is there as a whole or not at all.
    if (std::all_of(parts.begin(), parts.end(), [&](const auto& part) {
          return done.has(part.sequence);
        })) {
      on_batch({}, counts);
      continue;
    }
    const auto states = target.forward(batch.tokens.ids, layer_ids, batch.tokens.document_ids);
    // The writer's thread reads bytes of the host.
    const auto joined = torch::cat({states.features, states.last}, -1).cpu();
    std::vector<data::FeatureRecord> records;
    for (const auto& part : parts)
      records.push_back({part.sequence, joined[part.row].narrow(0, part.row_begin, part.length)});
    writer.add(std::move(records));
    on_batch(counts, {});
  }
}

}  // namespace draftsmith::pipeline
