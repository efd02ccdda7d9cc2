// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace draftsmith::data {

/// One sequence of a dataset.
struct TokenSequence {
  std::vector<int64_t> ids;
  std::vector<uint8_t> mask;  // 1 where the token is supervised (not shifted); as long as ids
};

/// What planning needs to know of a sequence.
struct SequenceFacts {
  int64_t length = 0;         // tokens
  int64_t first_anchor = -1;  // first position that is supervised and so is the next; -1 = none
  int64_t smallest_id = 0;    // 0 of an empty sequence
  int64_t largest_id = 0;
};

/// The first position that is supervised and so is the next, or -1.
int64_t find_first_anchor(const std::vector<uint8_t>& mask);

/// The sequences of a `save_to_disk` folder of Hugging Face datasets, memory-mapped: shards in
/// the order of state.json, each an Arrow IPC stream (the file format is read too); other files
/// of the folder are ignored. Columns: `input_ids` and one of `loss_mask`, `assistant_masks` or
/// `labels` (-100 where not supervised); several of them must agree.
class TokenDataset {
 public:
  /// `split` is needed where the folder has a dataset_dict.json.
  /// Errors: DataError for a missing shard, a damaged file, wrong columns or types or no rows;
  /// ConfigError for a missing or unknown split.
  static TokenDataset open(const std::filesystem::path& folder, const std::string& split);
  TokenDataset(TokenDataset&&) noexcept;
  TokenDataset& operator=(TokenDataset&&) noexcept;
  ~TokenDataset();

  int64_t num_sequences() const;
  int64_t length(int64_t index) const;  // tokens

  /// Errors: DataError naming the row if ids and mask differ in length, or if a value is null.
  TokenSequence sequence(int64_t index) const;

  /// Reads the whole sequence without copying it. Errors: as `sequence`.
  SequenceFacts facts(int64_t index) const;

  /// Changes whenever a shard does: names, sizes, times of change and rows of the shards.
  const std::string& fingerprint() const;

  const std::filesystem::path& folder() const;

 private:
  struct Shards;
  explicit TokenDataset(std::unique_ptr<Shards> shards);

  std::unique_ptr<Shards> shards_;
};

/// Errors: DataError naming row and position of the first id outside 0 .. vocab_size - 1.
void check_token_ids(const std::vector<int64_t>& ids, int64_t vocab_size, const std::string& where);

}  // namespace draftsmith::data
