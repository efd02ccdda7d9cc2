// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/short_conv.h"

#include <gtest/gtest.h>

#include <cmath>

#include "draftsmith/base/error.h"

#include "tests/support/golden.h"
#include "tests/support/reference.h"

namespace draftsmith::ops {
namespace {

using testing::max_difference;
using testing::random_normal;
using torch::Tensor;

constexpr int64_t kTaps = 4;
constexpr int64_t kChannels = 37;

/// Of tokens [n, C] that follow one another from nothing.
Tensor convolve_by_definition(const Tensor& tokens, const Tensor& weight) {
  auto sums = torch::zeros_like(tokens);
  for (int64_t t = 0; t < tokens.size(0); ++t)
    for (int64_t j = 0; j < kTaps; ++j)
      if (t - kTaps + 1 + j >= 0) sums[t] += weight[j] * tokens[t - kTaps + 1 + j];
  return sums * sums.sigmoid();
}

struct ShortConv : ::testing::Test {
  Tensor x = random_normal({2, 11, kChannels}, 1);
  Tensor weight = random_normal({kTaps, kChannels}, 2);
  Tensor window = random_normal({2, kTaps - 1, kChannels}, 3);
};

TEST_F(ShortConv, EqualsTheDefinitionAndStartsEverySpanAnew) {
  const std::vector<Span> spans = {{0, 0, 2}, {0, 2, 9}, {1, 0, 11}};
  const auto out = short_conv(x, weight, {}, span_sources(spans, 2, 11, kTaps));
  for (const Span& span : spans) {
    const int64_t count = span.end - span.begin;
    const auto wanted = convolve_by_definition(x[span.row].narrow(0, span.begin, count), weight);
    EXPECT_LE(max_difference(out[span.row].narrow(0, span.begin, count), wanted), 1e-13);
  }
}

TEST_F(ShortConv, GoesOnFromItsWindow) {
  const auto out = short_conv(x, weight, window, line_sources(2, 11, kTaps));
  for (const int64_t b : {0, 1}) {
    const auto whole = convolve_by_definition(torch::cat({window[b], x[b]}), weight);
    EXPECT_LE(max_difference(out[b], whole.narrow(0, kTaps - 1, 11)), 1e-13);
  }
}

TEST_F(ShortConv, IsTheSameByPlainOperations) {
  const std::vector<std::vector<int64_t>> parents = {
      {-1, 0, 0, 1, 2, 3, 5, 6, 4, 4, 9}, {-1, 0, 1, 1}};
  const std::vector<Span> spans = {{0, 0, 2}, {0, 2, 9}, {1, 0, 11}};
  const auto compare = [&](const Tensor& before, const ConvSources& sources) {
    EXPECT_LE(
        max_difference(
            short_conv_plain(x, weight, before, sources), short_conv(x, weight, before, sources)),
        1e-13);
    const auto half = [](const Tensor& t) { return t.defined() ? t.to(torch::kBFloat16) : t; };
    const auto plain = short_conv_plain(half(x), half(weight), half(before), sources);
    const auto kernel = short_conv(half(x), half(weight), half(before), sources);
    // Sums of another order may round to the next bfloat16 number.
    EXPECT_LE(
        ((plain - kernel).to(torch::kDouble).abs() / (kernel.to(torch::kDouble).abs() + 0.01))
            .max()
            .item<double>(),
        0x1p-6);
  };
  compare({}, span_sources(spans, 2, 11, kTaps));
  compare(window, line_sources(2, 11, kTaps));
  compare(window, tree_sources(make_tree_layout(parents), kTaps));
}

TEST_F(ShortConv, FollowsTheAncestorsOfATree) {
  const std::vector<std::vector<int64_t>> parents = {
      {-1, 0, 0, 1, 2, 3, 5, 6, 4, 4, 9}, {-1, 0, 1, 1}};
  const auto tree = make_tree_layout(parents);
  const auto out = short_conv(x, weight, window, tree_sources(tree, kTaps));
  for (size_t b = 0; b < 2; ++b) {
    const auto row = static_cast<int64_t>(b);
    for (int64_t node = 0; node < std::ssize(parents[b]); ++node) {
      std::vector<int64_t> path;
      for (int64_t i = node; i >= 0; i = parents[b][static_cast<size_t>(i)])
        path.insert(path.begin(), i);
      const auto tokens = x[row].index_select(0, torch::tensor(path, torch::kLong));
      const auto whole = convolve_by_definition(torch::cat({window[row], tokens}), weight);
      EXPECT_LE(max_difference(out[row][node], whole[whole.size(0) - 1]), 1e-13) << node;
    }
  }
}

TEST_F(ShortConv, RoundsTheSumBeforeSilu) {
  const auto half = x.to(torch::kBFloat16);
  const auto filter = weight.to(torch::kBFloat16);
  const auto sums = torch::conv1d(
                        half.to(torch::kFloat).transpose(1, 2),
                        filter.to(torch::kFloat).t().unsqueeze(1), {}, 1, kTaps - 1, 1, kChannels)
                        .narrow(2, 0, 11)
                        .transpose(1, 2)
                        .to(torch::kBFloat16);
  const auto out =
      short_conv(half, filter, {}, span_sources({{0, 0, 11}, {1, 0, 11}}, 2, 11, kTaps));
  // Sums in another order may round to the neighbour once in a while.
  EXPECT_LE(testing::relative_difference(out, torch::silu(sums)), std::exp2(-10));
}

TEST_F(ShortConv, KeepsTheLastInputsAlongAPath) {
  const auto next = advance_conv_window(window, x, {{0, 2}, {1, 4, 5, 8}});
  EXPECT_TRUE(next[0].equal(torch::stack({window[0][2], x[0][0], x[0][2]})));
  EXPECT_TRUE(next[1].equal(torch::stack({x[1][4], x[1][5], x[1][8]})));
  EXPECT_TRUE(advance_conv_window(window, x, {{}, {}}).equal(window));
}

TEST_F(ShortConv, RefusesAWindowOfAnotherSize) {
  EXPECT_THROW(
      short_conv(x, weight, window.narrow(1, 0, 2), line_sources(2, 11, kTaps)), ShapeError);
}

}  // namespace
}  // namespace draftsmith::ops
