// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/block_attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include <torch/csrc/autograd/autograd.h>

#include "draftsmith/base/error.h"

#include "tests/support/golden.h"
#include "tests/support/reference.h"

namespace draftsmith::ops {
namespace {

using testing::max_difference;
using testing::numeric_gradient;
using testing::random_normal;
using torch::Tensor;

struct Inputs {
  Tensor query, key, value, mask;
};

/// B = 2, two blocks of K = 3, S = 5, H = 4, G = 2, E = 4; block 1 of row 1 is not kept.
Inputs make_inputs(torch::ScalarType dtype = torch::kDouble, bool keeps_last = false) {
  BlockLayout layout{
      torch::tensor({0, 3, 2, 4}, torch::kLong).view({2, 2}), torch::ones({2, 2}, torch::kBool),
      torch::zeros({2, 2}, torch::kLong), 3};
  layout.keep[1][1].fill_(keeps_last);
  return {
      random_normal({2, 6, 4, 4}, 1).to(dtype), random_normal({2, 11, 2, 4}, 2).to(dtype),
      random_normal({2, 11, 2, 4}, 3).to(dtype), make_block_mask(layout, {3, true}, 5)};
}

Tensor attend(const Inputs& in) { return block_attention(in.query, in.key, in.value, in.mask); }

/// softmax(q k^T / sqrt(E)) v over the visible keys, one number at a time.
Tensor attend_in_a_loop(const Inputs& in) {
  const int64_t E = in.query.size(3);
  const int64_t repeat = in.query.size(2) / in.key.size(2);
  auto out = torch::zeros(in.query.sizes(), torch::kDouble);
  for (int64_t b = 0; b < in.query.size(0); ++b) {
    for (int64_t r = 0; r < in.query.size(1); ++r) {
      for (int64_t h = 0; h < in.query.size(2); ++h) {
        const int64_t g = h / repeat;
        std::vector<double> terms;
        double sum = 0;
        for (int64_t j = 0; j < in.key.size(1); ++j) {
          double score = 0;
          for (int64_t e = 0; e < E; ++e)
            score += in.query[b][r][h][e].item<double>() * in.key[b][j][g][e].item<double>();
          const bool is_visible = in.mask[b][r][j].item<bool>();
          terms.push_back(is_visible ? std::exp(score / std::sqrt(static_cast<double>(E))) : 0);
          sum += terms.back();
        }
        for (int64_t j = 0; j < in.key.size(1); ++j)
          if (terms[static_cast<size_t>(j)] > 0)
            out[b][r][h] += in.value[b][j][g] * (terms[static_cast<size_t>(j)] / sum);
      }
    }
  }
  return out;
}

/// Gradients of sum(out * upstream) towards query, key and value.
std::vector<Tensor> gradients(Inputs& in, const Tensor& upstream) {
  in.query.set_requires_grad(true);
  in.key.set_requires_grad(true);
  in.value.set_requires_grad(true);
  const auto result =
      torch::autograd::grad({(attend(in) * upstream).sum()}, {in.query, in.key, in.value});
  in.query.set_requires_grad(false);
  in.key.set_requires_grad(false);
  in.value.set_requires_grad(false);
  return result;
}

TEST(BlockAttention, EqualsALoopInFloat64) {
  const auto in = make_inputs();
  EXPECT_LE(max_difference(attend(in), attend_in_a_loop(in)), 1e-13);
}

TEST(BlockAttention, IsCloseToTheLoopInLowerPrecision) {
  const auto exact = attend_in_a_loop(make_inputs());
  EXPECT_LE(max_difference(attend(make_inputs(torch::kFloat)), exact), 1e-5);
  const auto half = attend(make_inputs(torch::kBFloat16));
  EXPECT_EQ(half.scalar_type(), torch::kBFloat16);
  // Values are of the order 1 to 3 and rounded to 8 bits on the way in, in the weights and out.
  EXPECT_LE(max_difference(half, exact), 16 * std::exp2(-8));
}

TEST(BlockAttention, HasTheGradientOfCentralDifferences) {
  auto in = make_inputs();
  const auto upstream = random_normal({2, 6, 4, 4}, 4);
  const auto analytic = gradients(in, upstream);
  const auto value = [&] { return (attend(in) * upstream).sum().item<double>(); };
  EXPECT_LE(max_difference(analytic[0], numeric_gradient(value, in.query)), 1e-7);
  EXPECT_LE(max_difference(analytic[1], numeric_gradient(value, in.key)), 1e-7);
  EXPECT_LE(max_difference(analytic[2], numeric_gradient(value, in.value)), 1e-7);
}

TEST(BlockAttention, GivesZerosAndFiniteGradientsToRowsThatSeeNothing) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kDouble}) {
    auto in = make_inputs(dtype);
    const auto hidden_rows = attend(in)[1].narrow(0, 3, 3);
    EXPECT_EQ(hidden_rows.abs().max().item<double>(), 0);
    for (const Tensor& gradient : gradients(in, torch::ones_like(in.query)))
      EXPECT_TRUE(gradient.isfinite().all().item<bool>());
    EXPECT_EQ(
        gradients(in, torch::ones_like(in.query))[0][1].narrow(0, 3, 3).abs().max().item<double>(),
        0);
  }
}

TEST(BlockAttention, IsNotChangedByAPaddingBlock) {
  // F07: the same row with and without a block that is not kept.
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    auto both = make_inputs(dtype);
    auto alone = both;
    alone.query = both.query.narrow(1, 0, 3).clone();
    alone.key = both.key.narrow(1, 0, 8).clone();
    alone.value = both.value.narrow(1, 0, 8).clone();
    alone.mask = both.mask.narrow(1, 0, 3).narrow(2, 0, 8).clone();
    const auto with = gradients(both, torch::ones_like(both.query));
    const auto without = gradients(alone, torch::ones_like(alone.query));
    EXPECT_LE(max_difference(attend(both)[1].narrow(0, 0, 3), attend(alone)[1]), 1e-5);
    EXPECT_LE(max_difference(with[0][1].narrow(0, 0, 3), without[0][1]), 1e-5);
    EXPECT_LE(max_difference(with[1][1].narrow(0, 0, 8), without[1][1]), 1e-5);
    EXPECT_LE(max_difference(with[2][1].narrow(0, 0, 8), without[2][1]), 1e-5);
    EXPECT_EQ(with[2][1].narrow(0, 8, 3).abs().max().item<double>(), 0);
  }
}

TEST(BlockAttention, IgnoresKeysAtAndAfterTheAnchor) {
  // F01 (b) and (c): anchors 3 and 5, K = 4, S = 12.
  const BlockLayout layout{
      torch::tensor({3, 5}, torch::kLong).view({1, 2}), torch::ones({1, 2}, torch::kBool),
      torch::zeros({1, 2}, torch::kLong), 4};
  Inputs in{
      random_normal({1, 8, 2, 4}, 1).to(torch::kFloat),
      random_normal({1, 20, 2, 4}, 2).to(torch::kFloat),
      random_normal({1, 20, 2, 4}, 3).to(torch::kFloat), make_block_mask(layout, {}, 12)};
  const auto before = attend(in);
  const auto add_noise = [&](int64_t begin, int64_t end) {
    Inputs noisy = in;
    noisy.key = in.key.clone();
    noisy.value = in.value.clone();
    const auto noise = 10 * random_normal({1, end - begin, 2, 4}, 5).to(torch::kFloat);
    noisy.key.narrow(1, begin, end - begin) += noise;
    noisy.value.narrow(1, begin, end - begin) += noise;
    return attend(noisy);
  };
  EXPECT_TRUE(add_noise(5, 12).equal(before));
  const auto after = add_noise(4, 5);
  EXPECT_TRUE(after.narrow(1, 0, 4).equal(before.narrow(1, 0, 4)));
  EXPECT_GT(max_difference(after.narrow(1, 4, 4), before.narrow(1, 4, 4)), 0.1);
}

TEST(BlockAttention, RefusesTensorsThatDoNotFit) {
  const auto in = make_inputs();
  testing::expect_error<ShapeError>(
      [&] { block_attention(in.query, in.key.narrow(0, 0, 1), in.value, in.mask); }, {"key"});
  testing::expect_error<ShapeError>(
      [&] { block_attention(in.query, in.key, in.value.narrow(1, 0, 3), in.mask); }, {"value"});
  testing::expect_error<ShapeError>(
      [&] { block_attention(in.query, in.key, in.value, in.mask.narrow(2, 0, 3)); }, {"mask"});
  testing::expect_error<ShapeError>(
      [&] { block_attention(in.query[0], in.key, in.value, in.mask); }, {"query"});
}

}  // namespace
}  // namespace draftsmith::ops
