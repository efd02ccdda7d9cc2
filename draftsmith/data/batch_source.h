// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "draftsmith/data/draft_blocks.h"
#include "draftsmith/data/settings.h"
#include "draftsmith/data/token_batch.h"
#include "draftsmith/data/token_dataset.h"

namespace draftsmith::data {

/// The next batch to read. Batches are numbered within an epoch; the order of an epoch follows
/// from (seed, epoch) alone, so this is all a resume needs.
struct DataCursor {
  int64_t epoch = 0;
  int64_t batch = 0;
};

/// What became of the sequences: read = trained + skipped + those of the other part.
struct DataReport {
  int64_t read = 0;
  int64_t trained = 0;
  int64_t cut = 0;         // trained, but shortened to max_length
  int64_t too_long = 0;    // skipped: longer than max_length (overlong = skip) or than a batch
  int64_t no_anchor = 0;   // skipped: no two supervised tokens in a row
  int64_t other_part = 0;  // held out, or the rest where the held out ones are read
};

struct SourceBatch {
  TokenBatch tokens;
  DraftBlocks blocks;
  DataCursor at;    // of this batch
  DataCursor next;  // the cursor after it
};

/// Which sequences of a dataset a source gives. What is held out follows from the seed and a
/// sequence's number alone.
enum class Part { kTrained, kHeldOut };

/// Reads a dataset in length buckets and makes draft blocks, epoch after epoch.
class BatchSource {
 public:
  /// Reads every sequence once, to check ids and masks and to find those that can be trained.
  /// Errors: DataError if an id is outside the vocabulary or if no sequence is left.
  BatchSource(
      TokenDataset dataset,
      const DataSettings& settings,
      int64_t vocab_size,
      Part part = Part::kTrained);

  const DataReport& report() const { return report_; }
  const DataSettings& settings() const { return settings_; }

  /// Says what was found: sequences, batches per epoch, a line per bucket, padding.
  void log_summary() const;

  int64_t batches_of_epoch(int64_t epoch);

  /// The batch at the cursor. A cursor past the end of its epoch means the next epoch.
  SourceBatch read(DataCursor cursor, const BlockRule& rule);

 private:
  TokenSequence read_sequence(int64_t number) const;  // cut to max_length
  void plan(int64_t epoch);

  TokenDataset dataset_;
  DataSettings settings_;
  std::vector<int64_t> numbers_;  // trained sequences
  std::vector<int64_t> lengths_;  // of numbers_, after the cut
  DataReport report_;
  int64_t planned_epoch_ = -1;
  std::vector<std::vector<int64_t>> batches_;  // of planned_epoch_, indices into numbers_
};

}  // namespace draftsmith::data
