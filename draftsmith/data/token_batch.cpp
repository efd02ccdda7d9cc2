// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/token_batch.h"

#include <algorithm>

#include "draftsmith/base/error.h"

namespace draftsmith::data {

TokenBatch make_token_batch(const std::vector<std::vector<Document>>& rows, bool is_packed) {
  TokenBatch batch;
  int64_t longest = 0;
  for (const auto& row : rows) {
    int64_t length = 0;
    for (const Document& document : row)
      length += static_cast<int64_t>(document.tokens.ids.size());
    batch.lengths.push_back(length);
    longest = std::max(longest, length);
  }
  DS_CHECK(longest > 0);
  const auto B = static_cast<int64_t>(rows.size());
  batch.ids = torch::zeros({B, longest}, torch::kLong);
  batch.mask = torch::zeros({B, longest}, torch::kByte);
  if (is_packed) batch.document_ids = torch::full({B, longest}, -1, torch::kLong);
  for (int64_t b = 0; b < B; ++b) {
    int64_t begin = 0;
    int64_t number = 0;  // of the document in its row
    for (const auto& [tokens, sequence, sequence_begin] : rows[static_cast<size_t>(b)]) {
      const auto length = static_cast<int64_t>(tokens.ids.size());
      const int64_t offset = b * longest + begin;
      std::copy(tokens.ids.begin(), tokens.ids.end(), batch.ids.data_ptr<int64_t>() + offset);
      std::copy(tokens.mask.begin(), tokens.mask.end(), batch.mask.data_ptr<uint8_t>() + offset);
      if (is_packed) std::fill_n(batch.document_ids.data_ptr<int64_t>() + offset, length, number++);
      batch.sequences.push_back(sequence);
      batch.parts.push_back({b, begin, length, sequence, sequence_begin});
      begin += length;
    }
  }
  return batch;
}

TokenBatch pad_sequences(
    const std::vector<TokenSequence>& sequences,
    const std::vector<int64_t>& numbers) {
  std::vector<std::vector<Document>> rows;
  for (size_t i = 0; i < sequences.size(); ++i)
    rows.push_back({{sequences[i], i < numbers.size() ? numbers[i] : 0}});
  return make_token_batch(rows, /*is_packed=*/false);
}

}  // namespace draftsmith::data
