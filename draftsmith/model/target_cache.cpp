// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/model/target_cache.h"

#include <algorithm>

#include "draftsmith/base/error.h"
#include "draftsmith/ops/short_conv.h"

namespace draftsmith::model {
namespace {

std::vector<torch::TensorOptions> attention_options(
    const TargetCache::Sizes& sizes,
    const std::vector<torch::TensorOptions>& options) {
  std::vector<torch::TensorOptions> result;
  for (size_t i = 0; i < options.size(); ++i)
    if (!sizes.is_linear[i]) result.push_back(options[i]);
  return result;
}

/// Errors: DS_CHECK unless every node's parent stands before it and the first is the root.
void check_paths(const ops::TreeLayout& tree, const std::vector<std::vector<int64_t>>& paths) {
  DS_CHECK(static_cast<int64_t>(paths.size()) == tree.B);
  for (size_t b = 0; b < paths.size(); ++b) {
    int64_t parent = -1;
    for (const int64_t node : paths[b]) {
      DS_CHECK(node >= 0 && node < tree.sizes[b]);
      DS_CHECK(tree.parents[b * static_cast<size_t>(tree.T) + static_cast<size_t>(node)] == parent);
      parent = node;
    }
  }
}

}  // namespace

TargetCache::TargetCache(const Sizes& sizes, const std::vector<torch::TensorOptions>& options)
    : kv_(sizes.num_rows,
          sizes.capacity,
          sizes.num_kv_heads,
          sizes.head_dim,
          attention_options(sizes, options)),
      shape_(sizes.delta),
      delta_(options.size()) {
  int64_t num_attention = 0;
  for (size_t i = 0; i < options.size(); ++i) {
    kv_layers_.push_back(sizes.is_linear[i] ? -1 : num_attention++);
    if (!sizes.is_linear[i]) continue;
    delta_[i].window =
        torch::zeros({sizes.num_rows, sizes.conv_taps - 1, shape_.width()}, options[i]);
    delta_[i].state = torch::zeros(
        {sizes.num_rows, shape_.value_heads, shape_.key_dim, shape_.value_dim},
        options[i].dtype(torch::kFloat));
  }
}

void TargetCache::commit(const std::vector<std::vector<int64_t>>& paths) {
  DS_CHECK(tree_.has_value());
  check_paths(*tree_, paths);
  const int64_t B = tree_->B;
  std::vector<int64_t> counts;
  for (const auto& path : paths)
    counts.push_back(static_cast<int64_t>(path.size()));
  const int64_t longest = *std::max_element(counts.begin(), counts.end());
  std::vector<int64_t> index(static_cast<size_t>(B * longest), 0);  // into [B T] tokens
  for (int64_t b = 0; b < B; ++b)
    for (int64_t i = 0; i < counts[static_cast<size_t>(b)]; ++i)
      index[static_cast<size_t>(b * longest + i)] =
          b * tree_->T + paths[static_cast<size_t>(b)][static_cast<size_t>(i)];
  const auto tokens = torch::tensor(index, torch::kLong);
  for (size_t i = 0; i < delta_.size() && longest > 0; ++i) {
    if (!delta_[i].state.defined()) continue;
    const auto select = [&](const torch::Tensor& x) {
      return x.flatten(0, 1).index_select(0, tokens.to(x.device())).view({B, longest, x.size(2)});
    };
    const PendingDelta& pending = pending_[i];
    ops::delta_rule_recurrent(
        {select(pending.mixed), select(pending.decay), select(pending.beta), shape_}, counts,
        delta_[i].state);
    delta_[i].window = ops::advance_conv_window(delta_[i].window, pending.raw, paths);
  }
  kv_.keep(paths);
  tree_.reset();
  pending_.clear();
}

void TargetCache::select_rows(const std::vector<int64_t>& index) {
  DS_CHECK(!tree_.has_value());
  kv_.select_rows(index);
  const auto rows = torch::tensor(index, torch::kLong);
  for (auto& [window, state] : delta_) {
    if (!state.defined()) continue;
    window = window.index_select(0, rows.to(window.device()));
    state = state.index_select(0, rows.to(state.device()));
  }
}

TargetCache TargetCache::clone() const {
  TargetCache copy = *this;
  copy.kv_ = kv_.clone();
  for (auto& [window, state] : copy.delta_) {
    if (!state.defined()) continue;
    window = window.clone();
    state = state.clone();
  }
  return copy;
}

}  // namespace draftsmith::model
