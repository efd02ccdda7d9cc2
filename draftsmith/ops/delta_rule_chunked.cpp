// SPDX-License-Identifier: Apache-2.0
// The delta rule in matrices by libtorch's operations: the definition of the chunked form on
// every device, and the tree form that walks nothing.
#include <algorithm>
#include <cmath>
#include <limits>

#include "draftsmith/base/error.h"
#include "draftsmith/ops/delta_heads.h"
#include "draftsmith/ops/delta_rule.h"

namespace draftsmith::ops {
namespace {

using torch::Tensor;

constexpr int64_t kChunk = 64;
constexpr int64_t kChunksAtOnce = 16;  // bounds the temporaries

Tensor normalise(const Tensor& x) {
  return x * (x.square().sum(-1, /*keepdim=*/true) + 1e-6).rsqrt();
}

/// [Hv, T, ..] -> [Hv, n, 64, ..], padded with zeros: decay 0 and beta 0 leave the state alone.
Tensor cut_chunks(const Tensor& x, int64_t num_chunks) {
  auto sizes = x.sizes().vec();
  const int64_t missing = num_chunks * kChunk - sizes[1];
  auto whole = x;
  if (missing > 0) {
    auto padding = sizes;
    padding[1] = missing;
    whole = torch::cat({x, torch::zeros(padding, x.options())}, 1);
  }
  sizes[1] = num_chunks;
  sizes.insert(sizes.begin() + 2, kChunk);
  return whole.reshape(sizes);
}

/// exp(left_i - right_j) where `hidden` is false, else 0. Masked before exp: above the diagonal
/// differences are positive and may overflow.
Tensor exp_of_differences(const Tensor& sums, const Tensor& hidden) {
  return (sums.unsqueeze(-1) - sums.unsqueeze(-2))
      .masked_fill(hidden, -std::numeric_limits<double>::infinity())
      .exp();
}

/// Some chunks of one row; `state` [Hv, Ek, Ev] is changed in place.
Tensor run_chunks(const DeltaHeads& tokens, const Tensor& state) {  // [Hv, T, Ev]
  const int64_t T = tokens.query.size(1);
  const int64_t n = (T + kChunk - 1) / kChunk;
  const auto query = cut_chunks(tokens.query, n);
  const auto key = cut_chunks(tokens.key, n);
  const auto beta = cut_chunks(tokens.beta, n).unsqueeze(-1);
  const auto sums = cut_chunks(tokens.decay, n).cumsum(-1);  // [Hv, n, 64]
  const auto last = sums.narrow(-1, kChunk - 1, 1);
  const auto later =
      torch::ones({kChunk, kChunk}, sums.options().dtype(torch::kBool)).triu(/*diagonal=*/1);
  const auto decays = exp_of_differences(sums, later);
  const auto scaled_key = key * beta;
  const auto system = (torch::matmul(scaled_key, key.mT()) * decays).tril(/*diagonal=*/-1);
  const auto right_side = torch::cat(
      {cut_chunks(tokens.value, n) * beta, scaled_key * sums.exp().unsqueeze(-1)}, -1);
  const auto solved = at::linalg_solve_triangular(
      system, right_side, /*upper=*/false, /*left=*/true, /*unitriangular=*/true);
  const int64_t Ev = tokens.value.size(-1);
  const auto own = solved.narrow(-1, 0, Ev);                      // U
  const auto carried = solved.narrow(-1, Ev, tokens.key.size(-1));  // Wk
  const auto scores = torch::matmul(query, key.mT()) * decays;
  const auto faded_query = query * sums.exp().unsqueeze(-1);
  const auto fading_key = key * (last - sums).exp().unsqueeze(-1);
  const auto whole_decay = last.exp().unsqueeze(-1);
  auto out = torch::empty({query.size(0), n, kChunk, Ev}, query.options());
  for (int64_t i = 0; i < n; ++i) {
    const auto written = own.select(1, i) - torch::bmm(carried.select(1, i), state);  // V'
    out.select(1, i).copy_(
        torch::bmm(faded_query.select(1, i), state) + torch::bmm(scores.select(1, i), written));
    state.copy_(
        state * whole_decay.select(1, i) + torch::bmm(fading_key.select(1, i).mT(), written));
  }
  return out.flatten(1, 2).narrow(1, 0, T);
}

}  // namespace

DeltaHeads split_delta_heads(const DeltaInputs& inputs, const Span& span) {
  const DeltaShape& shape = inputs.shape;
  const int64_t count = span.end - span.begin;
  const int64_t key_width = shape.key_heads * shape.key_dim;
  const auto rows =
      inputs.mixed[span.row].narrow(0, span.begin, count).to(inputs.decay.scalar_type());
  const auto heads = [&](int64_t first, int64_t num_heads, int64_t dim) {
    return rows.narrow(1, first, num_heads * dim).view({count, num_heads, dim}).transpose(0, 1);
  };
  const auto repeat = [&](const Tensor& x) {
    return x.repeat_interleave(shape.value_heads / shape.key_heads, 0);
  };
  const auto query = normalise(heads(0, shape.key_heads, shape.key_dim));
  const auto gates = [&](const Tensor& x) {
    return x[span.row].narrow(0, span.begin, count).t();
  };
  return {
      repeat(query * (1 / std::sqrt(static_cast<double>(shape.key_dim)))),
      repeat(normalise(heads(key_width, shape.key_heads, shape.key_dim))),
      heads(2 * key_width, shape.value_heads, shape.value_dim), gates(inputs.decay),
      gates(inputs.beta)};
}

Tensor delta_rule_chunked_plain(
    const DeltaInputs& inputs,
    const std::vector<Span>& spans,
    const Tensor& state) {
  check_delta_inputs(inputs, state);
  const DeltaShape& shape = inputs.shape;
  const int64_t B = inputs.mixed.size(0);
  const int64_t T = inputs.mixed.size(1);
  auto out = torch::zeros({B, T, shape.value_heads, shape.value_dim}, inputs.mixed.options());
  for (const Span& span : spans) {
    DS_CHECK(span.row >= 0 && span.row < B && span.begin >= 0 && span.end <= T);
    const auto own_state =
        state.defined() ? state[span.row]
                        : torch::zeros(
                              {shape.value_heads, shape.key_dim, shape.value_dim},
                              inputs.decay.options());
    for (int64_t begin = span.begin; begin < span.end; begin += kChunk * kChunksAtOnce) {
      const Span part{span.row, begin, std::min(span.end, begin + kChunk * kChunksAtOnce)};
      const auto values = run_chunks(split_delta_heads(inputs, part), own_state);
      out[span.row].narrow(0, part.begin, part.end - part.begin).copy_(values.transpose(0, 1));
    }
  }
  return out;
}

Tensor delta_rule_tree_by_ancestors(
    const DeltaInputs& inputs,
    const TreeLayout& tree,
    const Tensor& state) {
  check_delta_inputs(inputs, state);
  DS_CHECK(state.defined() && tree.B == inputs.mixed.size(0) && tree.T == inputs.mixed.size(1));
  const DeltaShape& shape = inputs.shape;
  auto out = torch::zeros(
      {tree.B, tree.T, shape.value_heads, shape.value_dim}, inputs.mixed.options());
  const auto seen =  // [B, T, T]
      torch::tensor(tree.ancestors, torch::kByte).view({tree.B, tree.T, tree.T}).to(torch::kBool);
  for (int64_t b = 0; b < tree.B; ++b) {
    const int64_t n = tree.sizes[static_cast<size_t>(b)];
    const auto tokens = split_delta_heads(inputs, {b, 0, n});
    const auto ancestors = seen[b].narrow(0, 0, n).narrow(1, 0, n).to(inputs.mixed.device());
    const auto sums =  // of the decays along the path, both ends included
        torch::matmul(tokens.decay, ancestors.to(tokens.decay.scalar_type()).t());
    const auto decays = exp_of_differences(sums, ancestors.logical_not());
    const auto beta = tokens.beta.unsqueeze(-1);
    const auto faded = sums.exp().unsqueeze(-1);
    const auto system =
        (torch::bmm(tokens.key * beta, tokens.key.mT()) * decays).tril(/*diagonal=*/-1);
    const auto right_side = beta * (tokens.value - faded * torch::bmm(tokens.key, state[b]));
    const auto written = at::linalg_solve_triangular(
        system, right_side, /*upper=*/false, /*left=*/true, /*unitriangular=*/true);
    const auto scores = torch::bmm(tokens.query, tokens.key.mT()) * decays;
    const auto values =
        faded * torch::bmm(tokens.query, state[b]) + torch::bmm(scores, written);
    out[b].narrow(0, 0, n).copy_(values.transpose(0, 1));
  }
  return out;
}

}  // namespace draftsmith::ops
