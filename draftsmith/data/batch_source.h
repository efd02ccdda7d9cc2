// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "draftsmith/data/draft_blocks.h"
#include "draftsmith/data/sequence_source.h"
#include "draftsmith/data/settings.h"
#include "draftsmith/data/token_batch.h"
#include "draftsmith/data/token_dataset.h"

namespace draftsmith::data {

/// The next batch to read. Batches are numbered within an epoch; the order of an epoch follows
/// from (seed, epoch) alone, so this is all a resume needs.
struct DataCursor {
  int64_t epoch = 0;
  int64_t batch = 0;

  bool operator==(const DataCursor&) const = default;
};

struct SourceBatch {
  TokenBatch tokens;
  DraftBlocks blocks;
  int64_t source = 0;  // which dataset of `data.path` it comes from
  DataCursor at;       // of this batch
  DataCursor next;     // the cursor after it
};

/// How much of the batches is of one dataset.
struct SourceShare {
  std::string path;
  double planned = 0;
  double seen = 0;
  int64_t batches = 0;  // seen
};

/// Reads a dataset, or a mixture of several, in batches and makes draft blocks, epoch after epoch.
/// While a batch is trained on, a thread reads the next one.
class BatchSource {
 public:
  /// Opens the datasets of `data.path`. What planning needs to know of every sequence comes from
  /// an index beside the dataset or in `index_folder`, or from one pass over the dataset.
  /// Errors: as list_datasets, TokenDataset::open, SequenceSource and Mixture.
  static BatchSource
  open(const DataSettings& settings, int64_t vocab_size, const std::filesystem::path& index_folder);

  /// Reads every sequence once.
  BatchSource(TokenDataset dataset, const DataSettings& settings, int64_t vocab_size);

  BatchSource(BatchSource&&) noexcept;
  BatchSource& operator=(BatchSource&&) = delete;
  ~BatchSource();

  /// Keeps what the pass found, beside the dataset or else in the folder that `open` was given.
  void save_index() const;

  const DataSettings& settings() const;

  /// Of all datasets together.
  DataReport report() const;

  /// The same after the batches before the cursor: `trained` are the sequences that they hold.
  DataReport report(DataCursor cursor) const;

  /// Folders of the datasets, in the order of `data.path`.
  std::vector<std::string> source_names() const;

  const TokenDataset& dataset(int64_t source) const;

  /// Shares of the datasets in the batches before the cursor, which may be of a resumed run.
  std::vector<SourceShare> shares(DataCursor cursor) const;

  /// What was found, for people: sequences, batches per epoch, a line per bucket, padding, and
  /// the shares of a mixture.
  std::vector<std::string> describe() const;

  int64_t batches_of_epoch(int64_t epoch) const;

  /// Tokens, padding included, that no batch of any epoch exceeds.
  int64_t most_batch_tokens() const;

  /// Tokens of the batches of every dataset's first epoch, padding included.
  std::vector<int64_t> batch_tokens() const;

  /// The batch at the cursor. A cursor past the end of its epoch means the next epoch. The batch
  /// `stride` batches further is then read ahead.
  SourceBatch read(DataCursor cursor, const BlockRule& rule, int64_t stride = 1);

  /// As `read`, without reading ahead; safe from any thread.
  SourceBatch load(DataCursor cursor, const BlockRule& rule) const;

  /// The cursor after `count` batches; as after the last of them, so it may stand at the end of an
  /// epoch.
  DataCursor advance(DataCursor cursor, int64_t count) const;

  /// Another reader of the same data, for another thread.
  BatchSource share() const { return BatchSource(state_); }

  /// The sequences of `data.held_out`, if there are any.
  std::optional<BatchSource> held_out() const;

 private:
  struct State;
  explicit BatchSource(std::shared_ptr<const State> state);

  struct Ahead {
    DataCursor cursor;
    BlockRule rule;
    std::future<SourceBatch> batch;
  };

  std::shared_ptr<const State> state_;
  std::optional<Ahead> ahead_;
};

}  // namespace draftsmith::data
