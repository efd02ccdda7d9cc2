// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "draftsmith/data/token_dataset.h"

namespace draftsmith::data {

/// A stretch of a row and the stretch of a sequence that it holds.
struct RowPart {
  int64_t row = 0;
  int64_t row_begin = 0;       // first index in the row
  int64_t length = 0;          // tokens
  int64_t sequence = 0;        // number in the dataset
  int64_t sequence_begin = 0;  // first token of the sequence
};

/// Sequences side by side, padded on the right with id 0 and mask 0. A packed row holds several,
/// one after the other: its documents.
struct TokenBatch {
  torch::Tensor ids;               // [B, S] int64
  torch::Tensor mask;              // [B, S] uint8, 1 where supervised
  torch::Tensor document_ids;      // [B, S] int64, -1 = padding; undefined unless packed
  std::vector<int64_t> lengths;    // [B] tokens without padding
  std::vector<int64_t> sequences;  // their numbers in the dataset, row by row
  std::vector<RowPart> parts;      // one for each of `sequences`
};

/// A sequence, or a window of one, on its way into a row.
struct Document {
  TokenSequence tokens;
  int64_t sequence = 0;        // number in the dataset
  int64_t sequence_begin = 0;  // first token of the sequence
};

/// Rows of one document or more. Errors: DS_CHECK if there is no token at all.
TokenBatch make_token_batch(const std::vector<std::vector<Document>>& rows, bool is_packed);

/// One sequence in each row. Errors: DS_CHECK if `sequences` is empty or has no tokens.
TokenBatch pad_sequences(
    const std::vector<TokenSequence>& sequences,
    const std::vector<int64_t>& numbers);

}  // namespace draftsmith::data
