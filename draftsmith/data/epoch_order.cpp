// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/epoch_order.h"

#include <algorithm>
#include <utility>

#include "draftsmith/base/random.h"

namespace draftsmith::data {

std::vector<int64_t> shuffle(size_t count, uint64_t seed, uint64_t epoch, Purpose purpose) {
  std::vector<std::pair<uint64_t, int64_t>> keyed(count);
  for (size_t i = 0; i < count; ++i)
    keyed[i] = {
        hash_key({seed, epoch, static_cast<uint64_t>(purpose), i}), static_cast<int64_t>(i)};
  std::sort(keyed.begin(), keyed.end());
  std::vector<int64_t> order(count);
  std::transform(
      keyed.begin(), keyed.end(), order.begin(), [](const auto& item) { return item.second; });
  return order;
}

}  // namespace draftsmith::data
