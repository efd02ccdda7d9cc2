// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "draftsmith/data/token_dataset.h"

namespace draftsmith::data {

/// Sequences side by side, padded on the right with id 0 and mask 0.
struct TokenBatch {
  torch::Tensor ids;               // [B, S] int64
  torch::Tensor mask;              // [B, S] uint8, 1 where supervised
  std::vector<int64_t> lengths;    // [B] tokens without padding
  std::vector<int64_t> sequences;  // [B] numbers of the sequences in the dataset
};

/// Errors: DS_CHECK if `sequences` is empty or has no tokens.
TokenBatch pad_sequences(const std::vector<TokenSequence>& sequences, std::vector<int64_t> numbers);

}  // namespace draftsmith::data
