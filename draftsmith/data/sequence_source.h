// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "draftsmith/data/sequence_index.h"
#include "draftsmith/data/settings.h"
#include "draftsmith/data/token_batch.h"
#include "draftsmith/data/token_dataset.h"

namespace draftsmith::data {

/// What became of the sequences: read = trained + held_out + too_long + no_anchor.
struct DataReport {
  int64_t read = 0;
  int64_t trained = 0;
  int64_t held_out = 0;      // kept for evaluation
  int64_t cut = 0;           // trained, but shortened to max_length
  int64_t windowed = 0;      // trained in several windows of max_length
  int64_t too_long = 0;      // skipped: longer than max_length (overlong = skip) or than a batch
  int64_t no_anchor = 0;     // skipped: no two supervised tokens in a row
  int64_t bare_windows = 0;  // windows left out of trained sequences, for the same reason

  DataReport& operator+=(const DataReport& other);
};

/// A stretch of a sequence that is trained: all of it, its beginning or a window.
struct Piece {
  int64_t sequence = 0;
  uint32_t begin = 0;
  uint32_t length = 0;
};

/// The batches of one epoch. A row holds one piece, or those of `rows` if they are packed.
struct EpochPlan {
  std::vector<std::vector<int64_t>> rows;     // pieces of each row; empty = row i is piece i
  std::vector<std::vector<int64_t>> batches;  // rows of each batch
};

/// Batches of one dataset, epoch after epoch; the order follows from (seed, epoch) alone.
/// All const members may be called from several threads.
class SequenceSource {
 public:
  /// Errors: DataError if an id is outside the vocabulary or if no sequence is left to train.
  SequenceSource(
      std::shared_ptr<const TokenDataset> dataset,
      const SequenceIndex& index,
      const DataSettings& settings,
      int64_t vocab_size);

  /// The sequences that `data.held_out` keeps from training, nullptr if there are none.
  std::unique_ptr<SequenceSource> held_out() const;

  const TokenDataset& dataset() const { return *dataset_; }
  const DataReport& report() const { return report_; }

  int64_t batches_of_epoch(int64_t epoch) const;

  /// How many of the report's trained sequences stand in the first `batches` batches that are read.
  int64_t count_trained(int64_t batches) const;

  /// Tokens, padding included, that no batch of any epoch exceeds.
  int64_t most_batch_tokens() const;

  /// Tokens of the batches of the first epoch, padding included.
  std::vector<int64_t> batch_tokens() const;

  /// Errors: DataError naming the row of an id outside the vocabulary.
  TokenBatch read(int64_t epoch, int64_t batch) const;

  /// What was found, for people: sequences, batches per epoch, a line per bucket, padding.
  std::vector<std::string> describe() const;

 private:
  SequenceSource(const SequenceSource& other, std::vector<Piece> pieces);

  void collect_pieces(const SequenceIndex& index);
  int64_t add_windows(int64_t sequence, int64_t length);
  void split_held_out();
  std::shared_ptr<const EpochPlan> plan(int64_t epoch) const;
  std::shared_ptr<const EpochPlan> find_plan(int64_t epoch) const;  // null if it is not kept
  std::optional<int64_t> find_count(int64_t epoch) const;
  EpochPlan make_plan(int64_t epoch) const;
  std::vector<int64_t> row_lengths(const EpochPlan& plan) const;

  std::shared_ptr<const TokenDataset> dataset_;
  DataSettings settings_;
  int64_t vocab_size_;
  DataReport report_;
  std::vector<Piece> pieces_;
  std::vector<Piece> held_out_;
  mutable std::mutex planning_;  // held while a plan is made; taken before mutex_
  mutable std::mutex mutex_;     // of what follows, held for a moment only
  mutable std::vector<std::pair<int64_t, std::shared_ptr<const EpochPlan>>> plans_;  // newest last
  mutable std::map<int64_t, int64_t> batch_counts_;                                  // by epoch
};

}  // namespace draftsmith::data
