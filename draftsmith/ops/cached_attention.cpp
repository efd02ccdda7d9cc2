// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/cached_attention.h"

#include "draftsmith/base/error.h"
#include "draftsmith/ops/checks.h"
#include "draftsmith/ops/kernels.h"
#include "draftsmith/ops/storage.h"

namespace draftsmith::ops {

namespace {

/// What the new tokens see.
struct Visible {
  const uint8_t* ancestors = nullptr;
  bool is_block = false;
  int64_t window = 0;
};

torch::Tensor attend(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const std::vector<int64_t>& lengths,
    const Visible& visible) {
  const auto [B, T, H, E] = dims<4>(query, "query");
  const int64_t capacity = key.size(1);
  const int64_t G = key.size(2);
  check_shape(key, {B, capacity, G, E}, "key");
  check_shape(value, {B, capacity, G, E}, "value");
  check_same_kind(key, query, "key", "query");
  DS_CHECK(key.is_contiguous() && value.is_contiguous() && H % G == 0);
  DS_CHECK(static_cast<int64_t>(lengths.size()) == B);
  for (const int64_t length : lengths)
    DS_CHECK(length >= 0 && length + T <= capacity);
  const auto dense = query.contiguous();
  auto out = torch::empty_like(dense);
  compute_cached_attention(
      {.storage = storage_of(query),
       .query = dense.const_data_ptr(),
       .key = key.const_data_ptr(),
       .value = value.const_data_ptr(),
       .lengths = lengths.data(),
       .B = B,
       .T = T,
       .H = H,
       .G = G,
       .E = E,
       .capacity = capacity,
       .out = out.data_ptr(),
       .ancestors = visible.ancestors,
       .is_block = visible.is_block,
       .window = visible.window});
  return out;
}

}  // namespace

torch::Tensor cached_attention(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const std::vector<int64_t>& lengths,
    const TreeLayout* tree) {
  if (tree == nullptr) return attend(query, key, value, lengths, {});
  DS_CHECK(tree->B == query.size(0) && tree->T == query.size(1));
  return attend(query, key, value, lengths, {.ancestors = tree->ancestors.data()});
}

torch::Tensor cached_block_attention(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const std::vector<int64_t>& lengths,
    const BlockVisibility& visibility) {
  return attend(
      query, key, value, lengths,
      {.is_block = !visibility.is_causal_block, .window = visibility.window});
}

}  // namespace draftsmith::ops
