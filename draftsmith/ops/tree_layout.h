// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace draftsmith::ops {

/// T new tokens of B rows, each row a tree below what the row holds already. Rows with fewer
/// nodes are padded; padding nodes are roots of their own that nothing descends from.
struct TreeLayout {
  int64_t B = 0;
  int64_t T = 0;                   // nodes of the largest tree
  std::vector<int64_t> sizes;      // [B] nodes of each row
  std::vector<int64_t> parents;    // [B, T] -1 for a root
  std::vector<int64_t> depths;     // [B, T] 0 for a root
  std::vector<int64_t> order;      // [B, T] the first sizes[b] list the nodes depth first
  std::vector<uint8_t> ancestors;  // [B, T, T] 1 where node j is node i or stands above it
};

/// Errors: ShapeError unless every row has parents[0] = -1 and 0 <= parents[i] < i for the others.
TreeLayout make_tree_layout(const std::vector<std::vector<int64_t>>& parents);

}  // namespace draftsmith::ops
