// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/row_packing.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "draftsmith/base/error.h"
#include "draftsmith/data/epoch_order.h"

namespace draftsmith::data {

std::vector<std::vector<int64_t>> pack_rows(
    const std::vector<int64_t>& lengths,
    const PackLimits& limits,
    uint64_t seed,
    uint64_t epoch) {
  const auto length_of = [&](int64_t index) { return lengths[static_cast<size_t>(index)]; };
  std::vector<std::vector<int64_t>> rows;
  std::multimap<int64_t, size_t> open;  // room left -> row
  const auto order = shuffle(lengths.size(), seed, epoch, Purpose::kPackRows);
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin;
    int64_t tokens = 0;
    while (end < order.size() && tokens < kWindowBatches * limits.tokens_per_batch)
      tokens += length_of(order[end++]);
    std::vector<int64_t> window(
        order.begin() + static_cast<std::ptrdiff_t>(begin),
        order.begin() + static_cast<std::ptrdiff_t>(end));
    std::stable_sort(window.begin(), window.end(), [&](int64_t left, int64_t right) {
      return length_of(left) > length_of(right);
    });
    for (const int64_t index : window) {
      const int64_t length = length_of(index);
      DS_CHECK(length > 0 && length <= limits.tokens_per_row);
      auto found = open.lower_bound(length);
      int64_t room = limits.tokens_per_row;
      size_t row = rows.size();
      if (found == open.end()) {
        rows.emplace_back();
      } else {
        std::tie(room, row) = *found;
        open.erase(found);
      }
      rows[row].push_back(index);
      if (room > length) open.emplace(room - length, row);
    }
    begin = end;
  }
  return rows;
}

}  // namespace draftsmith::data
