// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "draftsmith/ops/cuda/delta_rule.h"
#include "draftsmith/ops/tree_layout.h"

namespace draftsmith::ops {

/// How a GPU walks trees depth first with one state at hand: states of nodes with several children
/// are put aside.
struct TreeWalk {
  std::vector<cuda::TreeStep> steps;  // [B, T] the first sizes[b] of each row
  int64_t num_slots = 0;              // states put aside at a time
};

TreeWalk plan_tree_walk(const TreeLayout& tree);

}  // namespace draftsmith::ops
