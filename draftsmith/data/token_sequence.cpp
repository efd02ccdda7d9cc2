// SPDX-License-Identifier: Apache-2.0
// What is asked of a sequence, wherever it was read from.
#include <fmt/format.h>

#include <algorithm>

#include "draftsmith/base/error.h"
#include "draftsmith/data/token_dataset.h"

namespace draftsmith::data {

int64_t find_first_anchor(const std::vector<uint8_t>& mask) {
  const auto found = std::adjacent_find(mask.begin(), mask.end(), [](uint8_t left, uint8_t right) {
    return left != 0 && right != 0;
  });
  return found == mask.end() ? -1 : found - mask.begin();
}

void check_token_ids(
    const std::vector<int64_t>& ids,
    int64_t vocab_size,
    const std::string& where) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    throw DataError(
        {.what = fmt::format("token {}", i),
         .expected = fmt::format("an id below the vocabulary's {}", vocab_size),
         .got = fmt::format("{}", ids[i]),
         .where = where,
         .hint = "data tokenised for this target"});
  }
}

}  // namespace draftsmith::data
