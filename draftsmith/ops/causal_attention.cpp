// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/causal_attention.h"

#include <iterator>
#include <optional>

#include "draftsmith/base/error.h"
#include "draftsmith/ops/checks.h"
#include "draftsmith/ops/cpu/causal_attention.h"
#include "draftsmith/ops/storage.h"

namespace draftsmith::ops {
namespace {

using torch::Tensor;

Tensor attend_rows(const Tensor& query, const Tensor& key, const Tensor& value) {
  return at::scaled_dot_product_attention(
             query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), {}, 0.0,
             /*is_causal=*/true, std::nullopt, /*enable_gqa=*/true)
      .transpose(1, 2);
}

bool are_whole_rows(const std::vector<Span>& spans, int64_t B, int64_t S) {
  if (std::ssize(spans) != B) return false;
  for (int64_t b = 0; b < B; ++b) {
    const Span& span = spans[static_cast<size_t>(b)];
    if (span.row != b || span.begin != 0 || span.end != S) return false;
  }
  return true;
}

}  // namespace

bool has_causal_kernel(
    int64_t heads,
    int64_t key_heads,
    int64_t head_dim,
    torch::ScalarType dtype,
    torch::Device device) {
  return device.is_cpu() && dtype == torch::kBFloat16 &&
         has_causal_attention(heads, key_heads, head_dim);
}

Tensor causal_attention_plain(
    const Tensor& query,
    const Tensor& key,
    const Tensor& value,
    const std::vector<Span>& spans) {
  if (are_whole_rows(spans, query.size(0), query.size(1))) return attend_rows(query, key, value);
  auto out = torch::zeros_like(query);
  for (const Span& span : spans) {
    const auto part = [&](const Tensor& x) {
      return x.narrow(0, span.row, 1).narrow(1, span.begin, span.end - span.begin);
    };
    part(out).copy_(attend_rows(part(query), part(key), part(value)));
  }
  return out;
}

Tensor causal_attention(
    const Tensor& query,
    const Tensor& key,
    const Tensor& value,
    const std::vector<Span>& spans) {
  const auto [B, S, H, E] = dims<4>(query, "query");
  const int64_t G = key.size(2);
  check_shape(key, {B, S, G, E}, "key");
  check_shape(value, {B, S, G, E}, "value");
  check_same_kind(key, query, "key", "query");
  check_same_kind(value, query, "value", "query");
  DS_CHECK(H % G == 0 && !needs_gradient({query, key, value}));
  int64_t tokens = 0;
  for (const Span& span : spans) {
    DS_CHECK(span.row >= 0 && span.row < B && span.begin >= 0 && span.end <= S);
    tokens += span.end - span.begin;
  }
  if (!has_causal_kernel(H, G, E, query.scalar_type(), query.device()))
    return causal_attention_plain(query, key, value, spans);
  const auto queries = query.contiguous();
  const auto keys = key.contiguous();
  const auto values = value.contiguous();
  auto out = tokens == B * S ? torch::empty_like(queries) : torch::zeros_like(queries);
  constexpr int64_t kPanelTokens = 32;
  const auto packed = torch::empty(  // bfloat16 pairs
      {2, count_key_panels(spans.data(), std::ssize(spans)), G, E / 2, kPanelTokens}, torch::kInt);
  compute_causal_attention(
      {.query = queries.const_data_ptr(),
       .key = keys.const_data_ptr(),
       .value = values.const_data_ptr(),
       .spans = spans.data(),
       .num_spans = std::ssize(spans),
       .S = S,
       .H = H,
       .G = G,
       .E = E,
       .packed_keys = static_cast<uint32_t*>(packed[0].data_ptr()),
       .packed_values = static_cast<uint32_t*>(packed[1].data_ptr()),
       .out = out.data_ptr()});
  return out;
}

}  // namespace draftsmith::ops
