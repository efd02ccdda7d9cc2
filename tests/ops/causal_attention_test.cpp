// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/causal_attention.h"

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

struct Case {
  Tensor query, key, value;
};

Case make_case(int64_t B, int64_t S, int64_t H, int64_t G, int64_t E, torch::ScalarType dtype) {
  return {
      (2 * random_normal({B, S, H, E}, 1)).to(dtype), random_normal({B, S, G, E}, 2).to(dtype),
      random_normal({B, S, G, E}, 3).to(dtype)};
}

/// The definition, one query at a time, in float64.
Tensor attend_by_definition(const Case& c, const std::vector<Span>& spans) {
  auto out = torch::zeros(c.query.sizes(), torch::kDouble);
  const int64_t E = c.query.size(3);
  const int64_t repeat = c.query.size(2) / c.key.size(2);
  for (const Span& span : spans) {
    for (int64_t t = span.begin; t < span.end; ++t) {
      const auto seen = [&](const Tensor& x) {
        return x[span.row]
            .narrow(0, span.begin, t + 1 - span.begin)
            .to(torch::kDouble)
            .repeat_interleave(repeat, 1)
            .transpose(0, 1);  // [H, seen, E]
      };
      const auto query = c.query[span.row][t].to(torch::kDouble).unsqueeze(1);  // [H, 1, E]
      const auto scores = torch::bmm(query, seen(c.key).mT()) / std::sqrt(static_cast<double>(E));
      out[span.row][t].copy_(torch::bmm(scores.softmax(-1), seen(c.value)).squeeze(1));
    }
  }
  return out;
}

/// Weights are rounded to bfloat16 and so is the result: half a step each of the largest value.
double tolerance(const Case& c) {
  return 2 * std::exp2(-9) * c.value.to(torch::kDouble).abs().max().item<double>();
}

TEST(CausalAttention, EqualsTheDefinitionInFloat64) {
  const auto c = make_case(2, 37, 6, 2, 20, torch::kDouble);
  for (const auto& spans :
       {std::vector<Span>{{0, 0, 37}, {1, 0, 37}},
        std::vector<Span>{{0, 0, 5}, {0, 5, 37}, {1, 2, 9}}})
    EXPECT_LE(
        max_difference(
            causal_attention(c.query, c.key, c.value, spans), attend_by_definition(c, spans)),
        1e-13);
}

TEST(CausalAttention, EqualsTheDefinitionInBfloat16) {
  struct Heads {
    int64_t H, G, E;
  };
  for (const auto& [H, G, E] :
       {Heads{6, 2, 64}, Heads{8, 2, 256}, Heads{2, 2, 96}, Heads{5, 1, 32}}) {
    for (const int64_t S : {1, 31, 32, 33, 129, 300}) {
      const auto c = make_case(1, S, H, G, E, torch::kBFloat16);
      const auto out = causal_attention(c.query, c.key, c.value, {{0, 0, S}});
      ASSERT_EQ(out.scalar_type(), torch::kBFloat16);
      EXPECT_LE(max_difference(out, attend_by_definition(c, {{0, 0, S}})), tolerance(c))
          << H << " " << G << " " << E << " " << S;
    }
  }
}

TEST(CausalAttention, KeepsScoresApartThatGrowAlongTheRow) {
  // Every block of keys has larger scores than those before it, then smaller ones.
  auto c = make_case(1, 600, 4, 2, 64, torch::kBFloat16);
  const auto factor =
      torch::arange(600, torch::kDouble).view({1, 600, 1, 1}).sub(400).abs().neg() / 20;
  c.key = (c.query.slice(2, 0, 2).sign() * (30 + factor) / 8).to(torch::kBFloat16);
  const std::vector<Span> spans = {{0, 0, 600}};
  EXPECT_LE(
      max_difference(
          causal_attention(c.query, c.key, c.value, spans), attend_by_definition(c, spans)),
      tolerance(c));
}

TEST(CausalAttention, KeepsToSpansAndLeavesTheRestZero) {
  const auto c = make_case(2, 300, 6, 2, 64, torch::kBFloat16);
  const std::vector<Span> spans = {{0, 0, 45}, {0, 45, 290}, {1, 1, 200}};
  const auto out = causal_attention(c.query, c.key, c.value, spans);
  EXPECT_LE(max_difference(out, attend_by_definition(c, spans)), tolerance(c));
  EXPECT_EQ(out[0].narrow(0, 290, 10).abs().max().item<double>(), 0);
  EXPECT_EQ(out[1].narrow(0, 0, 1).abs().max().item<double>(), 0);
  EXPECT_EQ(out[1].narrow(0, 200, 100).abs().max().item<double>(), 0);
}

TEST(CausalAttention, OfTheKernelIsTheSameBesideOthersAndAlone) {
  if (!has_causal_kernel(6, 2, 64, torch::kBFloat16, torch::kCPU))
    GTEST_SKIP() << "this processor has no dot products of bfloat16 pairs, or a tile unit";
  const auto c = make_case(2, 400, 6, 2, 64, torch::kBFloat16);
  const std::vector<Span> spans = {{0, 0, 45}, {0, 45, 400}, {1, 1, 200}};
  const auto out = causal_attention(c.query, c.key, c.value, spans);
  for (const Span& span : spans) {
    for (const int64_t count : {span.end - span.begin, (span.end - span.begin) / 2}) {
      const auto part = [&](const Tensor& x) {
        return x.narrow(0, span.row, 1).narrow(1, span.begin, count);
      };
      EXPECT_TRUE(causal_attention(part(c.query), part(c.key), part(c.value), {{0, 0, count}})
                      .equal(part(out)));
    }
  }
}

TEST(CausalAttention, RefusesShapesThatDisagree) {
  const auto c = make_case(1, 4, 4, 2, 32, torch::kBFloat16);
  testing::expect_error<ShapeError>([&] {
    causal_attention(c.query, c.key.narrow(1, 0, 3), c.value, {{0, 0, 4}});
  });
  testing::expect_error<ShapeError>([&] {
    causal_attention(c.query, c.key, c.value.to(torch::kFloat), {{0, 0, 4}});
  });
}

}  // namespace
}  // namespace draftsmith::ops
