// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>

#include <torch/csrc/autograd/autograd.h>

#include "draftsmith/ops/block_plan.h"

#include "tests/ops/cuda/kernel_place.h"
#include "tests/support/random_tensor.h"

namespace draftsmith::testing {
namespace {

using ops::BlockAttentionInputs;
using ops::BlockLayout;
using ops::BlockVisibility;
using torch::Tensor;

constexpr double kUnit = 0x1p-8;  // largest relative error of a rounding to bfloat16
constexpr double kFloat =
    0x1p-14;  // far above what float32 sums and the exponentials of a GPU lose

struct Shape {
  std::string name;
  int64_t S, K, H, G, E;
  std::vector<std::vector<int64_t>> anchors;  // of each sequence; -1 - anchor: not kept
  int64_t border = 0;                         // where the second document of a sequence begins
  BlockVisibility visibility = {};
};

const std::vector<Shape> kShapes = {
    {"odd lengths", 150, 3, 8, 1, 64, {{0, 70, -72, 71, 149}, {5, 64, 128, 130, -2}}},
    {"a window smaller than a block", 90, 5, 2, 2, 64, {{0, 1, 40, 41, 89}}, 0, {3, true}},
    {"a window of one", 20, 3, 2, 1, 64, {{0, 7, 19}}, 0, {1, true}},
    {"documents and a window", 140, 4, 6, 2, 64, {{10, 50, 51, 60, 130, 139}}, 45, {70, true}},
    {"blocks larger than a tile", 75, 17, 8, 1, 64, {{30, -36, 74}}, 0, {0, true}},
    {"no block", 9, 2, 2, 1, 64, {{-1, -5}}},
    {"one key", 1, 2, 7, 7, 64, {{0}}},
    {"width 128", 100, 4, 12, 2, 128, {{3, 60, 61, 99}}, 33, {0, false}},
    {"width 256", 70, 3, 8, 2, 256, {{69, 2}, {33, -4}}, 0, {40, false}},
};

struct Case {
  BlockAttentionInputs in;  // bfloat16
  BlockLayout layout;
  Tensor upstream;
};

Case make_case(const Shape& s) {
  const auto B = static_cast<int64_t>(s.anchors.size());
  const auto N = static_cast<int64_t>(s.anchors[0].size());
  Case c;
  c.layout = {
      torch::zeros({B, N}, torch::kLong), torch::ones({B, N}, torch::kBool),
      torch::zeros({B, N}, torch::kLong), s.K};
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t n = 0; n < N; ++n) {
      const int64_t given = s.anchors[static_cast<size_t>(b)][static_cast<size_t>(n)];
      const int64_t anchor = given < 0 ? -1 - given : given;
      c.layout.anchors[b][n] = anchor;
      c.layout.keep[b][n] = given >= 0;
      c.layout.context_begin[b][n] = anchor >= s.border ? s.border : 0;
    }
  }
  const auto values = [&](int64_t length, int64_t heads, uint64_t seed) {
    return random_normal({B, length, heads, s.E}, seed).to(torch::kBFloat16);
  };
  c.in = {
      values(N * s.K, s.H, 1), values(s.S, s.G, 2), values(s.S, s.G, 3), values(N * s.K, s.G, 4),
      values(N * s.K, s.G, 5)};
  c.upstream = values(N * s.K, s.H, 6);
  return c;
}

/// What a kernel must give, and how far its roundings may take it from that.
struct Expected {
  Tensor value, error;
};
struct Reference {
  Expected out, log_sum;
  std::vector<Expected> gradients;  // query, context key and value, block key and value
};

/// By dense matrices in float64. Kernels round to bfloat16: weights, score gradients and results.
Reference make_reference(const Case& c, const Shape& s) {
  const auto wide = [](const Tensor& x) { return x.to(torch::kDouble); };
  const int64_t repeat = s.H / s.G;
  const auto rows = [&](const Tensor& x) { return wide(x).transpose(1, 2); };  // [B, H, rows, E]
  const auto columns = [&](const Tensor& context, const Tensor& own) {
    return rows(torch::cat({context, own}, 1)).repeat_interleave(repeat, 1);
  };
  const auto query = rows(c.in.query);
  const auto key = columns(c.in.context_key, c.in.block_key);
  const auto value = columns(c.in.context_value, c.in.block_value);
  const auto upstream = rows(c.upstream);
  const auto seen = ops::make_block_mask(c.layout, s.visibility, s.S).unsqueeze(1);
  const double scale = 1 / std::sqrt(static_cast<double>(s.E));
  const auto scores =
      (torch::matmul(query, key.mT()) * scale).masked_fill(seen.logical_not(), -INFINITY);
  const auto log_sum = scores.logsumexp(-1, /*keepdim=*/true);
  const auto weights = (scores - log_sum).exp().masked_fill(seen.logical_not(), 0);
  const auto out = torch::matmul(weights, value);
  const auto out_error = kUnit * (torch::matmul(weights, value.abs()) + out.abs()) + kFloat;

  const auto delta = (upstream * out).sum(-1, true);
  const auto delta_error = (upstream.abs() * out_error).sum(-1, true);
  const auto slopes = weights * (torch::matmul(upstream, value.mT()) - delta);
  const auto slope_error = weights * (delta_error + kFloat) + kUnit * slopes.abs();
  const auto join = [&](const Tensor& x) {  // of the query heads of each key head
    return x.unflatten(1, {s.G, repeat}).sum(2).transpose(1, 2);
  };
  const auto expect = [](const Tensor& value, const Tensor& error) {
    return Expected{value, error + kUnit * value.abs() + kFloat};
  };
  const auto query_gradient = expect(
      (scale * torch::matmul(slopes, key)).transpose(1, 2),
      (scale * torch::matmul(slope_error, key.abs())).transpose(1, 2));
  const auto key_gradient = expect(
      join(scale * torch::matmul(slopes.mT(), query)),
      join(scale * torch::matmul(slope_error.mT(), query.abs())));
  const auto value_gradient = expect(
      join(torch::matmul(weights.mT(), upstream)),
      join(kUnit * torch::matmul(weights.mT(), upstream.abs())));
  const auto part = [&](const Expected& all, int64_t begin, int64_t count) {
    return Expected{all.value.narrow(1, begin, count), all.error.narrow(1, begin, count)};
  };
  const int64_t Q = c.in.query.size(1);
  const auto sums = log_sum.squeeze(-1).transpose(1, 2);
  return {
      {out.transpose(1, 2), out_error.transpose(1, 2)},
      {sums, torch::full_like(sums, kFloat)},
      {query_gradient, part(key_gradient, 0, s.S), part(value_gradient, 0, s.S),
       part(key_gradient, s.S, Q), part(value_gradient, s.S, Q)}};
}

void require_expected(const Tensor& got, const Expected& expected, const std::string& what) {
  if (got.numel() == 0) return;
  const auto difference = (got.cpu().to(torch::kDouble) - expected.value).abs();
  const auto is_wrong = (difference <= expected.error).logical_not();  // of NaN too
  const int64_t wrong = is_wrong.sum().item<int64_t>();
  require(
      wrong == 0, fmt::format(
                      "{}: {} of {} values differ by up to {:.2e}, {:.1f} times what they may",
                      what, wrong, got.numel(), difference.max().item<double>(),
                      (difference / expected.error).max().item<double>()));
}

struct Results {
  Tensor out, log_sum;
  std::vector<Tensor> gradients;
};

/// Forward and backward where kernels run. What they do not write stays zero. With `is_filled` the
/// plan has as many tiles as any of its layouts.
Results run(KernelPlace& place, const Case& c, const Shape& s, bool is_filled = false) {
  const auto there = [&](const Tensor& x) { return x.to(place.device()); };
  const BlockAttentionInputs in{
      there(c.in.query), there(c.in.context_key), there(c.in.context_value), there(c.in.block_key),
      there(c.in.block_value)};
  const auto upstream = there(c.upstream);
  auto plan = ops::make_block_plan(c.layout, s.visibility, s.S, s.H / s.G, s.E);
  if (is_filled) ops::fill_block_plan(plan, c.layout.anchors.numel(), s.K * (s.H / s.G), s.E);
  const auto joined = there(plan.join());
  auto out = torch::zeros_like(in.query);
  auto log_sum = torch::zeros(in.query.sizes().slice(0, 3), out.options().dtype(torch::kFloat));
  auto params =
      ops::make_kernel_params(in, s.visibility, s.K, ops::view_block_plan(joined, plan.sizes()));
  params.out = out.data_ptr();
  params.log_sum = log_sum.data_ptr<float>();
  place.run(params);
  auto delta = torch::full_like(log_sum, 99);
  // Gradients of keys are written everywhere, those of queries where blocks are kept.
  std::vector<Tensor> gradients = {
      torch::zeros_like(in.query), torch::full_like(in.context_key, 99),
      torch::full_like(in.context_value, 99), torch::full_like(in.block_key, 99),
      torch::full_like(in.block_value, 99)};
  place.run(ops::cuda::BlockAttentionGradientParams{
      .forward = params,
      .out_gradient = upstream.const_data_ptr(),
      .delta = delta.data_ptr<float>(),
      .query_gradient = gradients[0].data_ptr(),
      .context_key_gradient = gradients[1].data_ptr(),
      .context_value_gradient = gradients[2].data_ptr(),
      .block_key_gradient = gradients[3].data_ptr(),
      .block_value_gradient = gradients[4].data_ptr()});
  return {out.cpu(), log_sum.cpu(), gradients};
}

void check_values(KernelPlace& place) {
  for (const Shape& s : kShapes) {
    const auto c = make_case(s);
    const auto wanted = make_reference(c, s);
    const auto got = run(place, c, s);
    require_expected(got.out, wanted.out, s.name + ", out");
    const auto kept = c.layout.keep.repeat_interleave(s.K, 1);
    require_expected(
        got.log_sum.index({kept}),
        {wanted.log_sum.value.index({kept}), wanted.log_sum.error.index({kept})},
        s.name + ", log sum");
    require(
        got.out.index({kept.logical_not()}).count_nonzero().item<int64_t>() == 0,
        s.name + ": a block that is not kept has an output");
    const char* names[] = {"query", "context key", "context value", "block key", "block value"};
    for (size_t i = 0; i < got.gradients.size(); ++i)
      require_expected(
          got.gradients[i], wanted.gradients[i],
          fmt::format("{}, gradient of {}", s.name, names[i]));
  }
}

void require_same_results(const Results& got, const Results& wanted, const std::string& what) {
  require_same(got.out, wanted.out, "out, " + what);
  for (size_t i = 0; i < wanted.gradients.size(); ++i)
    require_same(got.gradients[i], wanted.gradients[i], fmt::format("gradient {}, {}", i, what));
}

void check_repeats(KernelPlace& place) {
  const Shape& s = kShapes[3];
  const auto c = make_case(s);
  require_same_results(run(place, c, s), run(place, c, s), "once more");
}

void check_filled_plans(KernelPlace& place) {
  for (const Shape& s : kShapes) {
    const auto c = make_case(s);
    require_same_results(run(place, c, s, /*is_filled=*/true), run(place, c, s), s.name);
  }
}

}  // namespace

std::vector<KernelCheck> block_attention_checks() {
  return {
      {"BlockAttentionHasTheValuesAndGradientsOfDenseMatrices", check_values},
      {"BlockAttentionGivesTheSameBitsInAnyOrder", check_repeats},
      {"BlockAttentionPassesOverTilesThatOnlyFillItsPlan", check_filled_plans}};
}

}  // namespace draftsmith::testing
