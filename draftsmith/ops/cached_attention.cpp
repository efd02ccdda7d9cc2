// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/cached_attention.h"

#include "draftsmith/base/error.h"
#include "draftsmith/ops/checks.h"
#include "draftsmith/ops/kernels.h"
#include "draftsmith/ops/storage.h"

namespace draftsmith::ops {

torch::Tensor cached_attention(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const std::vector<int64_t>& lengths,
    const TreeLayout* tree) {
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
  DS_CHECK(tree == nullptr || (tree->B == B && tree->T == T));
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
       .ancestors = tree == nullptr ? nullptr : tree->ancestors.data()});
  return out;
}

}  // namespace draftsmith::ops
