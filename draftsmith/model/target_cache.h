// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <torch/types.h>

#include "draftsmith/model/kv_cache.h"
#include "draftsmith/ops/delta_rule.h"
#include "draftsmith/ops/tree_layout.h"

namespace draftsmith::model {

/// What one linear layer keeps of the tokens before.
struct DeltaState {
  torch::Tensor window;  // [B, taps - 1, C] the last inputs of the short convolution
  torch::Tensor state;   // [B, Hv, Ek, Ev] fp32 of the delta rule
};

/// The inputs of a linear layer for tokens that are verified and not committed yet.
struct PendingDelta {
  torch::Tensor raw;    // [B, T, C] before the short convolution
  torch::Tensor mixed;  // [B, T, C] after it
  torch::Tensor decay;  // [B, T, Hv]
  torch::Tensor beta;   // [B, T, Hv]
};

/// All that a target remembers of a batch: keys and values of the attention layers, states of
/// the linear ones. Copying shares tensors; `clone` does not.
class TargetCache {
 public:
  struct Sizes {
    int64_t num_rows = 0;         // B
    int64_t capacity = 0;         // tokens per row
    int64_t num_kv_heads = 0;     // G
    int64_t head_dim = 0;         // E
    std::vector<bool> is_linear;  // [L]
    ops::DeltaShape delta;        // of the linear layers
    int64_t conv_taps = 1;
  };
  /// `options` has one entry per layer: dtype and device.
  TargetCache(const Sizes& sizes, const std::vector<torch::TensorOptions>& options);

  int64_t num_rows() const { return kv_.num_rows(); }
  int64_t capacity() const { return kv_.capacity(); }
  const std::vector<int64_t>& lengths() const { return kv_.lengths(); }

  /// Keeps of the tokens of the last `Target::verify` those on `paths[b]`: node numbers from the
  /// root (0) downward, each the parent of the next. A path that ends early cuts back; an empty
  /// one keeps nothing. Row b then has lengths[b] + paths[b].size() tokens, and the cache is bit
  /// for bit that of a target which has seen only these, one after another.
  /// Errors: DS_CHECK for a path that is none, or without tokens to commit.
  void commit(const std::vector<std::vector<int64_t>>& paths);

  /// Keeps only the rows of `index`, in that order. Verified tokens must be committed before.
  void select_rows(const std::vector<int64_t>& index);

  /// A copy that shares nothing.
  TargetCache clone() const;

 private:
  friend class Target;

  KvCache kv_;                           // attention layers only
  std::vector<int64_t> kv_layers_;       // [L] number in kv_, -1 for linear layers
  ops::DeltaShape shape_;
  std::vector<DeltaState> delta_;        // [L] undefined tensors for attention layers
  std::optional<ops::TreeLayout> tree_;  // of verified tokens that are not committed
  std::vector<PendingDelta> pending_;    // [L] of the same
};

}  // namespace draftsmith::model
