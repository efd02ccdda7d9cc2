// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/block_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <torch/csrc/autograd/autograd.h>

#include "draftsmith/base/error.h"
#include "draftsmith/ops/block_methods.h"

#include "tests/support/golden.h"
#include "tests/support/reference.h"

namespace draftsmith::ops {
namespace {

using testing::max_difference;
using testing::numeric_gradient;
using testing::random_normal;
using torch::Tensor;

constexpr AttentionMethod kMethods[] = {
    AttentionMethod::kBlock, AttentionMethod::kGather, AttentionMethod::kDense};

struct Inputs {
  BlockAttentionInputs tensors;
  BlockLayout layout;
  BlockVisibility visibility;
};

/// B = 2, two blocks of K = 3, S = 5, H = 4, G = 2, E = 4; block 1 of row 1 is not kept.
Inputs make_inputs(torch::ScalarType dtype = torch::kDouble) {
  BlockLayout layout{
      torch::tensor({0, 3, 2, 4}, torch::kLong).view({2, 2}), torch::ones({2, 2}, torch::kBool),
      torch::zeros({2, 2}, torch::kLong), 3};
  layout.keep[1][1].fill_(false);
  return {
      {random_normal({2, 6, 4, 4}, 1).to(dtype), random_normal({2, 5, 2, 4}, 2).to(dtype),
       random_normal({2, 5, 2, 4}, 3).to(dtype), random_normal({2, 6, 2, 4}, 5).to(dtype),
       random_normal({2, 6, 2, 4}, 6).to(dtype)},
      layout,
      {3, true}};
}

Tensor attend(const Inputs& in, AttentionMethod method) {
  return block_attention(in.tensors, in.layout, in.visibility, method);
}

std::vector<Tensor*> list(BlockAttentionInputs& in) {
  return {&in.query, &in.context_key, &in.context_value, &in.block_key, &in.block_value};
}

/// softmax(q k^T / sqrt(E)) v over the visible keys, one number at a time.
Tensor attend_in_a_loop(const Inputs& in) {
  const auto& query = in.tensors.query;
  const auto key = torch::cat({in.tensors.context_key, in.tensors.block_key}, 1);
  const auto value = torch::cat({in.tensors.context_value, in.tensors.block_value}, 1);
  const auto mask = make_block_mask(in.layout, in.visibility, in.tensors.context_key.size(1));
  const int64_t E = query.size(3);
  const int64_t repeat = query.size(2) / key.size(2);
  auto out = torch::zeros(query.sizes(), torch::kDouble);
  for (int64_t b = 0; b < query.size(0); ++b) {
    for (int64_t r = 0; r < query.size(1); ++r) {
      for (int64_t h = 0; h < query.size(2); ++h) {
        const int64_t g = h / repeat;
        std::vector<double> terms;
        double sum = 0;
        for (int64_t j = 0; j < key.size(1); ++j) {
          double score = 0;
          for (int64_t e = 0; e < E; ++e)
            score += query[b][r][h][e].item<double>() * key[b][j][g][e].item<double>();
          const bool is_visible = mask[b][r][j].item<bool>();
          terms.push_back(is_visible ? std::exp(score / std::sqrt(static_cast<double>(E))) : 0);
          sum += terms.back();
        }
        for (int64_t j = 0; j < key.size(1); ++j)
          if (terms[static_cast<size_t>(j)] > 0)
            out[b][r][h] += value[b][j][g] * (terms[static_cast<size_t>(j)] / sum);
      }
    }
  }
  return out;
}

/// Gradients of sum(out * upstream) towards query, keys and values.
std::vector<Tensor> gradients(Inputs in, const Tensor& upstream, AttentionMethod method) {
  std::vector<Tensor> leaves;
  for (Tensor* tensor : list(in.tensors))
    leaves.push_back(*tensor = tensor->detach().clone().set_requires_grad(true));
  return torch::autograd::grad({(attend(in, method) * upstream).sum()}, leaves);
}

TEST(BlockAttention, EqualsALoopInFloat64) {
  const auto in = make_inputs();
  for (const auto method : kMethods)
    EXPECT_LE(max_difference(attend(in, method), attend_in_a_loop(in)), 1e-13);
}

TEST(BlockAttention, IsCloseToTheLoopInLowerPrecision) {
  const auto exact = attend_in_a_loop(make_inputs());
  for (const auto method : kMethods) {
    EXPECT_LE(max_difference(attend(make_inputs(torch::kFloat), method), exact), 1e-5);
    const auto half = attend(make_inputs(torch::kBFloat16), method);
    EXPECT_EQ(half.scalar_type(), torch::kBFloat16);
    // Values are of the order 1 to 3 and rounded to 8 bits on the way in, in the weights and out.
    EXPECT_LE(max_difference(half, exact), 16 * std::exp2(-8));
  }
}

TEST(BlockAttention, HasTheGradientOfCentralDifferences) {
  for (const auto method : kMethods) {
    auto in = make_inputs();
    const auto upstream = random_normal({2, 6, 4, 4}, 4);
    const auto analytic = gradients(in, upstream, method);
    const auto value = [&] { return (attend(in, method) * upstream).sum().item<double>(); };
    for (size_t i = 0; i < analytic.size(); ++i)
      EXPECT_LE(max_difference(analytic[i], numeric_gradient(value, *list(in.tensors)[i])), 1e-7);
  }
}

/// Random shapes: lengths, anchors at 0 and at the end, windows smaller than a block, documents,
/// blocks that are not kept, 1 to 8 query heads per key head. Large ones have several tiles in a
/// document.
Inputs make_random_inputs(uint64_t seed, torch::ScalarType dtype, bool is_large = false) {
  uint64_t draws = 0;
  const auto draw = [&](int64_t low, int64_t high) {
    const auto span = static_cast<uint64_t>(high - low + 1);
    return low + static_cast<int64_t>(hash_key({seed, draws++}) % span);
  };
  const int64_t B = draw(1, 2), S = is_large ? draw(300, 500) : draw(1, 40);
  const int64_t N = is_large ? draw(64, 80) : draw(1, 9), K = is_large ? draw(6, 8) : draw(1, 7);
  const int64_t G = draw(1, is_large ? 2 : 3), H = G * draw(is_large ? 4 : 1, 8), E = 8;
  Inputs in;
  in.layout = {
      torch::zeros({B, N}, torch::kLong), torch::ones({B, N}, torch::kBool),
      torch::zeros({B, N}, torch::kLong), K};
  for (int64_t b = 0; b < B; ++b) {
    const int64_t border = draw(0, S - 1);  // of two documents
    for (int64_t n = 0; n < N; ++n) {
      const int64_t kind = draw(0, 5);
      const int64_t anchor = kind == 0 ? 0 : kind == 1 ? S - 1 : draw(0, S - 1);
      in.layout.anchors[b][n] = anchor;
      in.layout.context_begin[b][n] = anchor >= border ? border : 0;
      in.layout.keep[b][n] = draw(0, 4) > 0;
    }
    in.layout.anchors[b] = std::get<0>(in.layout.anchors[b].sort());
    for (int64_t n = 0; n < N; ++n)
      in.layout.context_begin[b][n] =
          in.layout.anchors[b][n].item<int64_t>() >= border ? border : 0;
  }
  in.visibility = {draw(0, 2) == 0 ? 0 : draw(1, is_large ? 200 : 20), draw(0, 1) == 1};
  in.tensors = {
      random_normal({B, N * K, H, E}, seed + 1).to(dtype),
      random_normal({B, S, G, E}, seed + 2).to(dtype),
      random_normal({B, S, G, E}, seed + 3).to(dtype),
      random_normal({B, N * K, G, E}, seed + 4).to(dtype),
      random_normal({B, N * K, G, E}, seed + 5).to(dtype)};
  return in;
}

void expect_methods_agree(const Inputs& in, double tolerance) {
  const auto upstream =
      random_normal(in.tensors.query.sizes().vec(), 7).to(in.tensors.query.scalar_type());
  const auto wanted = attend(in, AttentionMethod::kDense);
  const auto wanted_gradients = gradients(in, upstream, AttentionMethod::kDense);
  for (const auto method : {AttentionMethod::kBlock, AttentionMethod::kGather}) {
    EXPECT_LE(max_difference(attend(in, method), wanted), tolerance);
    const auto found = gradients(in, upstream, method);
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_LE(max_difference(found[i], wanted_gradients[i]), tolerance) << i;
  }
}

TEST(BlockAttention, AgreesBetweenItsMethodsOnRandomShapes) {
  for (const auto& [dtype, tolerance] : {std::pair(torch::kDouble, 1e-9), {torch::kFloat, 1e-5}}) {
    for (uint64_t seed = 0; seed < 60; ++seed) {
      SCOPED_TRACE(seed);
      expect_methods_agree(make_random_inputs(100 * seed, dtype), tolerance);
    }
  }
}

TEST(BlockAttention, AgreesBetweenItsMethodsOnShapesOfManyTiles) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE(seed);
    const auto in = make_random_inputs(100 * seed + 7, torch::kDouble, /*is_large=*/true);
    const TileRule rule{
        in.layout.block_size, in.tensors.query.size(2) / in.tensors.context_key.size(2)};
    EXPECT_GT(in.layout.anchors.size(1), 3 * rule.max_blocks());
    expect_methods_agree(in, 1e-9);
  }
}

TEST(BlockAttention, AgreesBetweenItsMethodsWhereAnchorsAreInNoOrder) {
  auto in = make_random_inputs(7, torch::kDouble, /*is_large=*/true);
  in.layout.context_begin.zero_();
  for (const int64_t window : {0, 60}) {
    in.visibility.window = window;
    for (int64_t b = 0; b < in.layout.anchors.size(0); ++b)
      for (int64_t n = 0; n < in.layout.anchors.size(1); ++n)
        in.layout.anchors[b][n] = (n * 137 + b) % in.tensors.context_key.size(1);
    expect_methods_agree(in, 1e-9);
  }
}

TEST(BlockAttention, RunsByGatherWhereAGpuHasNoKernelForBlocks) {
  const torch::Device gpu(torch::kCUDA, 0);
  const auto find = [](AttentionMethod method, torch::Device device, torch::ScalarType dtype,
                       int64_t width) {
    return find_method_that_runs(method, device, dtype, {100, 4, 2, width});
  };
  using enum AttentionMethod;
  for (const int64_t width : {64, 128, 256})
    EXPECT_EQ(find(kBlock, gpu, torch::kBFloat16, width), kBlock);
  EXPECT_EQ(find(kBlock, gpu, torch::kFloat, 128), kGather);
  EXPECT_EQ(find(kBlock, gpu, torch::kBFloat16, 96), kGather);
  EXPECT_EQ(find(kDense, gpu, torch::kFloat, 96), kDense);
  EXPECT_EQ(find(kBlock, torch::kCPU, torch::kFloat, 96), kBlock);
}

TEST(BlockAttention, GivesTheSameBitsForTheSameInput) {
  const auto in = make_random_inputs(11, torch::kBFloat16);
  const auto upstream = random_normal(in.tensors.query.sizes().vec(), 7).to(torch::kBFloat16);
  const auto once = gradients(in, upstream, AttentionMethod::kBlock);
  const auto again = gradients(in, upstream, AttentionMethod::kBlock);
  for (size_t i = 0; i < once.size(); ++i)
    EXPECT_TRUE(once[i].equal(again[i]));
}

TEST(BlockAttention, GivesZerosAndFiniteGradientsToRowsThatSeeNothing) {
  for (const auto method : kMethods) {
    for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kDouble}) {
      auto in = make_inputs(dtype);
      const auto hidden_rows = attend(in, method)[1].narrow(0, 3, 3);
      EXPECT_EQ(hidden_rows.abs().max().item<double>(), 0);
      const auto found = gradients(in, torch::ones_like(in.tensors.query), method);
      for (const Tensor& gradient : found)
        EXPECT_TRUE(gradient.isfinite().all().item<bool>());
      EXPECT_EQ(found[0][1].narrow(0, 3, 3).abs().max().item<double>(), 0);
    }
  }
}

TEST(BlockAttention, IsNotChangedByAPaddingBlock) {
  // F07: the same row with and without a block that is not kept.
  for (const auto method : kMethods) {
    for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
      auto both = make_inputs(dtype);
      auto alone = both;
      for (Tensor* tensor :
           {&alone.tensors.query, &alone.tensors.block_key, &alone.tensors.block_value})
        *tensor = tensor->narrow(1, 0, 3).clone();
      for (Tensor* tensor :
           {&alone.layout.anchors, &alone.layout.keep, &alone.layout.context_begin})
        *tensor = tensor->narrow(1, 0, 1).clone();
      const auto with = gradients(both, torch::ones_like(both.tensors.query), method);
      const auto without = gradients(alone, torch::ones_like(alone.tensors.query), method);
      EXPECT_LE(
          max_difference(attend(both, method)[1].narrow(0, 0, 3), attend(alone, method)[1]), 1e-5);
      for (const size_t i : {0, 3, 4}) {
        EXPECT_LE(max_difference(with[i][1].narrow(0, 0, 3), without[i][1]), 1e-5);
        EXPECT_EQ(with[i][1].narrow(0, 3, 3).abs().max().item<double>(), 0);
      }
      for (const size_t i : {1, 2})
        EXPECT_LE(max_difference(with[i][1], without[i][1]), 1e-5);
    }
  }
}

TEST(BlockAttention, IgnoresKeysAtAndAfterTheAnchor) {
  // F01 (b) and (c): anchors 3 and 5, K = 4, S = 12.
  Inputs in{
      {random_normal({1, 8, 2, 4}, 1).to(torch::kFloat),
       random_normal({1, 12, 2, 4}, 2).to(torch::kFloat),
       random_normal({1, 12, 2, 4}, 3).to(torch::kFloat),
       random_normal({1, 8, 2, 4}, 4).to(torch::kFloat),
       random_normal({1, 8, 2, 4}, 5).to(torch::kFloat)},
      {torch::tensor({3, 5}, torch::kLong).view({1, 2}), torch::ones({1, 2}, torch::kBool),
       torch::zeros({1, 2}, torch::kLong), 4},
      {}};
  for (const auto method : kMethods) {
    const auto before = attend(in, method);
    const auto add_noise = [&](int64_t begin, int64_t end) {
      Inputs noisy = in;
      noisy.tensors.context_key = in.tensors.context_key.clone();
      noisy.tensors.context_value = in.tensors.context_value.clone();
      const auto noise = 10 * random_normal({1, end - begin, 2, 4}, 5).to(torch::kFloat);
      noisy.tensors.context_key.narrow(1, begin, end - begin) += noise;
      noisy.tensors.context_value.narrow(1, begin, end - begin) += noise;
      return attend(noisy, method);
    };
    EXPECT_TRUE(add_noise(5, 12).equal(before));
    const auto after = add_noise(4, 5);
    EXPECT_TRUE(after.narrow(1, 0, 4).equal(before.narrow(1, 0, 4)));
    EXPECT_GT(max_difference(after.narrow(1, 4, 4), before.narrow(1, 4, 4)), 0.1);
  }
}

TEST(BlockAttention, KeepsTheNaNsOfOneDocumentFromTheOther) {
  // Two documents in one row, two blocks each; the third anchor is the first of its document.
  constexpr int64_t kBorder = 20;
  Inputs clean{
      {random_normal({1, 12, 4, 8}, 1).to(torch::kFloat),
       random_normal({1, 40, 2, 8}, 2).to(torch::kFloat),
       random_normal({1, 40, 2, 8}, 3).to(torch::kFloat),
       random_normal({1, 12, 2, 8}, 4).to(torch::kFloat),
       random_normal({1, 12, 2, 8}, 5).to(torch::kFloat)},
      {torch::tensor({15, 18, 20, 30}, torch::kLong).view({1, 4}),
       torch::ones({1, 4}, torch::kBool), torch::tensor({0, 0, 20, 20}, torch::kLong).view({1, 4}),
       3},
      {}};
  Inputs broken = clean;
  for (Tensor* tensor : list(broken.tensors)) {
    *tensor = tensor->clone();
    const int64_t border = tensor->size(1) == 40 ? kBorder : 6;
    tensor->narrow(1, 0, border).fill_(std::numeric_limits<float>::quiet_NaN());
  }
  const auto upstream = random_normal(clean.tensors.query.sizes().vec(), 7).to(torch::kFloat);
  for (const int64_t window : {0, 7}) {
    clean.visibility = broken.visibility = {window, window > 0};
    for (const auto method : {AttentionMethod::kBlock, AttentionMethod::kGather}) {
      EXPECT_TRUE(
          attend(broken, method).narrow(1, 6, 6).equal(attend(clean, method).narrow(1, 6, 6)));
      const auto wanted = gradients(clean, upstream, method);
      const auto found = gradients(broken, upstream, method);
      for (size_t i = 0; i < found.size(); ++i) {
        const int64_t border = found[i].size(1) == 40 ? kBorder : 6;
        EXPECT_TRUE(found[i].slice(1, border).equal(wanted[i].slice(1, border))) << i;
      }
    }
  }
}

TEST(BlockAttention, RefusesTensorsThatDoNotFit) {
  const auto refuse = [](auto damage, const std::vector<std::string>& parts) {
    auto in = make_inputs();
    damage(in);
    testing::expect_error<ShapeError>([&] { attend(in, AttentionMethod::kBlock); }, parts);
  };
  refuse(
      [](Inputs& in) { in.tensors.context_key = in.tensors.context_key.narrow(0, 0, 1); },
      {"context_key"});
  refuse(
      [](Inputs& in) { in.tensors.block_value = in.tensors.block_value.narrow(1, 0, 3); },
      {"block_value"});
  refuse([](Inputs& in) { in.tensors.query = in.tensors.query[0]; }, {"query"});
  refuse([](Inputs& in) { in.tensors.query = in.tensors.query.to(torch::kFloat); }, {"query"});
  refuse([](Inputs& in) { in.layout.keep = in.layout.keep.narrow(1, 0, 1); }, {"keep"});
  refuse([](Inputs& in) { in.layout.block_size = 2; }, {"query"});
}

}  // namespace
}  // namespace draftsmith::ops
