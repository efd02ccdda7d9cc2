// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace draftsmith::model {

/// Tokens that the target verifies in one forward, as a tree below the cached tokens of a row.
/// Node 0 is the root: the newest committed token, which no cache holds yet. A chain is the tree
/// whose nodes follow one another.
struct TokenTree {
  std::vector<int64_t> ids;      // [n], n >= 1
  std::vector<int64_t> parents;  // [n] parents[0] = -1, else parents[i] < i

  int64_t size() const { return static_cast<int64_t>(ids.size()); }
};

/// The tree of a chain: parents -1, 0, 1, ...
TokenTree make_line(std::vector<int64_t> ids);

/// Nodes from the root to `node`, both included: the path that commits it.
std::vector<int64_t> path_to(const TokenTree& tree, int64_t node);

}  // namespace draftsmith::model
