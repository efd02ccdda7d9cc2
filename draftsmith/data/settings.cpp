// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/settings.h"

namespace draftsmith::data {

void add_fields(FieldList& fields, DataSettings& settings) {
  fields.begin_section("data");
  fields.add("path", settings.path, "dataset: a folder written by save_to_disk or generate");
  fields.add("split", settings.split, "split to read where the folder has several");
  fields.add_choice(
      "overlong", settings.overlong, {"cut", "skip"}, "what becomes of longer sequences");
  fields.add("max_length", settings.max_length, "longest sequence, in tokens", {2});
  fields.add(
      "tokens_per_batch", settings.tokens_per_batch,
      "most tokens of a batch: its sequences x the longest of them, padding included", {2});
  fields.add(
      "num_buckets", settings.num_buckets, "groups of similar length that batches come from",
      kAtLeastOne);
  fields.add(
      "max_sequences_per_batch", settings.max_sequences_per_batch, "most sequences of a batch",
      kAtLeastOne);
  fields.add(
      "num_anchors", settings.num_anchors,
      "draft blocks of a batch, drawn uniformly from all its eligible positions", kAtLeastOne);
  fields.add(
      "anchors_per_sequence", settings.anchors_per_sequence,
      "most draft blocks that one sequence offers; 0 = no cap", kAtLeastZero);
  fields.add(
      "seed", settings.seed, "seed of the order of sequences and of the anchors", kAtLeastZero);
  fields.add(
      "held_out", settings.held_out,
      "share of the sequences that is never trained on, for the evaluation during training",
      {0, 0.5});
}

}  // namespace draftsmith::data
