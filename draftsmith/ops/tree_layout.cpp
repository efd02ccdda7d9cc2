// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/tree_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "draftsmith/base/error.h"

namespace draftsmith::ops {
namespace {

void check_parents(const std::vector<int64_t>& parents, size_t row) {
  for (size_t i = 0; i < parents.size(); ++i) {
    const bool is_right =
        i == 0 ? parents[i] == -1 : parents[i] >= 0 && parents[i] < static_cast<int64_t>(i);
    if (is_right) continue;
    throw ShapeError(
        {.what = "tree parents",
         .expected = i == 0 ? "-1 for node 0" : fmt::format("0 to {}", i - 1),
         .got = fmt::format("{}", parents[i]),
         .where = fmt::format("row {}, node {}", row, i)});
  }
  if (parents.empty())
    throw ShapeError({.what = "tree", .expected = "at least a root", .got = "no nodes"});
}

/// Writes the nodes of one row so that a node's parent is the last one of smaller depth.
void list_depth_first(const std::vector<int64_t>& parents, int64_t* order) {
  std::vector<std::vector<int64_t>> children(parents.size());
  for (size_t i = 1; i < parents.size(); ++i)
    children[static_cast<size_t>(parents[i])].push_back(static_cast<int64_t>(i));
  std::vector<int64_t> open = {0};
  while (!open.empty()) {
    const int64_t node = open.back();
    open.pop_back();
    *order++ = node;
    const auto& below = children[static_cast<size_t>(node)];
    open.insert(open.end(), below.rbegin(), below.rend());
  }
}

}  // namespace

TreeLayout make_tree_layout(const std::vector<std::vector<int64_t>>& parents) {
  TreeLayout layout;
  layout.B = static_cast<int64_t>(parents.size());
  for (size_t b = 0; b < parents.size(); ++b) {
    check_parents(parents[b], b);
    layout.sizes.push_back(static_cast<int64_t>(parents[b].size()));
    layout.T = std::max(layout.T, layout.sizes.back());
  }
  const auto T = static_cast<size_t>(layout.T);
  layout.parents.assign(parents.size() * T, -1);
  layout.depths.assign(parents.size() * T, 0);
  layout.order.assign(parents.size() * T, 0);
  layout.ancestors.assign(parents.size() * T * T, 0);
  for (size_t b = 0; b < parents.size(); ++b) {
    list_depth_first(parents[b], layout.order.data() + b * T);
    for (size_t i = 0; i < T; ++i) {
      uint8_t* above = layout.ancestors.data() + (b * T + i) * T;
      above[i] = 1;
      if (i == 0 || i >= parents[b].size()) continue;
      const auto parent = static_cast<size_t>(parents[b][i]);
      layout.parents[b * T + i] = parents[b][i];
      layout.depths[b * T + i] = layout.depths[b * T + parent] + 1;
      const uint8_t* parents_above = layout.ancestors.data() + (b * T + parent) * T;
      for (size_t j = 0; j <= parent; ++j)
        above[j] |= parents_above[j];
    }
  }
  return layout;
}

}  // namespace draftsmith::ops
