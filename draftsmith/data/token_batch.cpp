// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/token_batch.h"

#include <algorithm>

#include "draftsmith/base/error.h"

namespace draftsmith::data {

TokenBatch pad_sequences(
    const std::vector<TokenSequence>& sequences,
    std::vector<int64_t> numbers) {
  TokenBatch batch;
  batch.sequences = std::move(numbers);
  int64_t longest = 0;
  for (const auto& sequence : sequences) {
    batch.lengths.push_back(static_cast<int64_t>(sequence.ids.size()));
    longest = std::max(longest, batch.lengths.back());
  }
  DS_CHECK(longest > 0);
  const auto B = static_cast<int64_t>(sequences.size());
  batch.ids = torch::zeros({B, longest}, torch::kLong);
  batch.mask = torch::zeros({B, longest}, torch::kByte);
  for (int64_t b = 0; b < B; ++b) {
    const auto& sequence = sequences[static_cast<size_t>(b)];
    std::copy(sequence.ids.begin(), sequence.ids.end(), batch.ids[b].data_ptr<int64_t>());
    std::copy(sequence.mask.begin(), sequence.mask.end(), batch.mask[b].data_ptr<uint8_t>());
  }
  return batch;
}

}  // namespace draftsmith::data
