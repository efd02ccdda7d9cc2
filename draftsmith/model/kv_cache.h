// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

namespace draftsmith::model {

/// Keys and values of the positions that a batch has been run on, per layer. Rows may have
/// different lengths; what lies beyond a row's length is garbage.
class KvCache {
 public:
  /// Memory: 2 x num_layers x B x capacity x G x E.
  KvCache(
      int64_t num_layers,
      int64_t num_rows,      // B
      int64_t capacity,      // tokens per row
      int64_t num_kv_heads,  // G
      int64_t head_dim,      // E
      torch::TensorOptions options);
  /// The same with a dtype and device for each layer.
  KvCache(
      int64_t num_rows,
      int64_t capacity,
      int64_t num_kv_heads,
      int64_t head_dim,
      const std::vector<torch::TensorOptions>& options);

  int64_t num_rows() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t capacity() const { return capacity_; }
  const std::vector<int64_t>& lengths() const { return lengths_; }

  /// Positions [B, T] that T further tokens per row get: lengths[b] + t.
  torch::Tensor next_positions(int64_t num_tokens) const;

  /// Writes T tokens per row at `next_positions`, without changing the lengths.
  void write(
      int64_t layer,
      const torch::Tensor& keys,     // [B, T, G, E]
      const torch::Tensor& values);  // [B, T, G, E]

  /// Everything, also what lies beyond the lengths: [B, capacity, G, E], dense.
  const torch::Tensor& keys(int64_t layer) const { return keys_[static_cast<size_t>(layer)]; }
  const torch::Tensor& values(int64_t layer) const { return values_[static_cast<size_t>(layer)]; }

  /// Row b now has lengths[b] + added[b] positions.
  void advance(const std::vector<int64_t>& added);

  /// Of the tokens written last, keeps those on paths[b] (numbers of the written tokens, ascending)
  /// and moves them together; row b now has lengths[b] + paths[b].size() positions.
  void keep(const std::vector<std::vector<int64_t>>& paths);

  KvCache clone() const;

  /// Keeps only the rows of `index`, in that order.
  void select_rows(const std::vector<int64_t>& index);

 private:
  int64_t capacity_;
  std::vector<int64_t> lengths_;
  std::vector<torch::Tensor> keys_;    // per layer [B, capacity, G, E]
  std::vector<torch::Tensor> values_;  // per layer [B, capacity, G, E]
};

}  // namespace draftsmith::model
