// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/tree_walk.h"

#include <algorithm>

namespace draftsmith::ops {

TreeWalk plan_tree_walk(const TreeLayout& tree) {
  TreeWalk walk;
  walk.steps.resize(static_cast<size_t>(tree.B * tree.T));
  for (int64_t b = 0; b < tree.B; ++b) {
    const auto size = static_cast<size_t>(tree.sizes[static_cast<size_t>(b)]);
    const int64_t* order = tree.order.data() + b * tree.T;
    const int64_t* parents = tree.parents.data() + b * tree.T;
    std::vector<int32_t> children(size, 0);
    for (size_t i = 1; i < size; ++i)
      ++children[static_cast<size_t>(parents[i])];
    std::vector<int32_t> slots(size, 0);  // that nodes and those above them hold
    std::vector<int32_t> own(size, cuda::kNowhere);
    int64_t previous = -1;
    for (size_t i = 0; i < size; ++i) {
      const auto node = static_cast<size_t>(order[i]);
      const int64_t parent = parents[node];
      if (parent >= 0) slots[node] = slots[static_cast<size_t>(parent)];
      if (children[node] > 1) own[node] = slots[node]++;
      walk.num_slots = std::max<int64_t>(walk.num_slots, slots[node]);
      int32_t from = cuda::kRootState;
      if (parent >= 0)
        from = parent == previous ? cuda::kPreviousState : own[static_cast<size_t>(parent)];
      walk.steps[static_cast<size_t>(b * tree.T) + i] = {
          static_cast<int32_t>(node), from, own[node]};
      previous = order[i];
    }
  }
  return walk;
}

}  // namespace draftsmith::ops
