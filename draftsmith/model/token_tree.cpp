// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/model/token_tree.h"

#include <algorithm>
#include <numeric>

#include "draftsmith/base/error.h"

namespace draftsmith::model {

TokenTree make_line(std::vector<int64_t> ids) {
  TokenTree tree{std::move(ids), {}};
  tree.parents.resize(tree.ids.size());
  std::iota(tree.parents.begin(), tree.parents.end(), int64_t{-1});
  return tree;
}

std::vector<int64_t> path_to(const TokenTree& tree, int64_t node) {
  DS_CHECK(node >= 0 && node < tree.size());
  std::vector<int64_t> path;
  for (; node >= 0; node = tree.parents[static_cast<size_t>(node)])
    path.push_back(node);
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace draftsmith::model
