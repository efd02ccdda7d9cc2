// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/cached_attention.h"

#include <algorithm>

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

  explicit Visible(const TreeLayout* tree)
      : ancestors(tree == nullptr ? nullptr : tree->ancestors.data()) {}
  explicit Visible(const BlockVisibility& visibility)
      : is_block(!visibility.is_causal_block), window(visibility.window) {}

  /// Marks the keys that new token t of T sees in row b, `length` of which are cached.
  void mark(int64_t b, int64_t t, int64_t T, int64_t length, bool* keys) const {
    const int64_t first = window > 0 ? std::clamp<int64_t>(length + t - window + 1, 0, length) : 0;
    std::fill(keys + first, keys + length, true);
    for (int64_t j = 0; j < (is_block ? T : t + 1); ++j)
      keys[length + j] = ancestors == nullptr || ancestors[(b * T + t) * T + j] != 0;
  }
};

/// By libtorch's operations.
torch::Tensor attend_plainly(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const std::vector<int64_t>& lengths,
    const Visible& visible) {
  const int64_t B = query.size(0), T = query.size(1);
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end()) + T;
  auto sees = torch::zeros({B, T, longest}, torch::kBool);
  for (int64_t b = 0; b < B; ++b)
    for (int64_t t = 0; t < T; ++t)
      visible.mark(
          b, t, T, lengths[static_cast<size_t>(b)], sees.data_ptr<bool>() + (b * T + t) * longest);
  const auto heads = [&](const torch::Tensor& x) {
    return x.narrow(1, 0, longest).transpose(1, 2);
  };
  return at::scaled_dot_product_attention(
             query.transpose(1, 2), heads(key), heads(value), sees.unsqueeze(1).to(query.device()),
             0.0, /*is_causal=*/false, std::nullopt,
             /*enable_gqa=*/true)
      .transpose(1, 2)
      .contiguous();
}

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
  if (!query.is_cpu()) return attend_plainly(query, key, value, lengths, visible);
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
  DS_CHECK(tree == nullptr || (tree->B == query.size(0) && tree->T == query.size(1)));
  return attend(query, key, value, lengths, Visible(tree));
}

torch::Tensor cached_block_attention(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const std::vector<int64_t>& lengths,
    const BlockVisibility& visibility) {
  return attend(query, key, value, lengths, Visible(visibility));
}

torch::Tensor cached_attention_plain(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const std::vector<int64_t>& lengths,
    const TreeLayout* tree) {
  return attend_plainly(query, key, value, lengths, Visible(tree));
}

}  // namespace draftsmith::ops
