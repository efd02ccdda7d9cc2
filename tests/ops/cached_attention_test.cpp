// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/cached_attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "draftsmith/base/error.h"

#include "tests/support/golden.h"

namespace draftsmith::ops {
namespace {

struct Case {
  torch::Tensor query, key, value;
  std::vector<int64_t> lengths;
};

Case make_case(int64_t T, torch::ScalarType dtype) {
  const int64_t B = 3, H = 6, G = 2, E = 20, capacity = 40;
  const auto wave = [&](at::IntArrayRef sizes, double step) {
    int64_t count = 1;
    for (const int64_t size : sizes)
      count *= size;
    return (torch::arange(count, torch::kDouble) * step).sin().view(sizes).to(dtype);
  };
  return {
      wave({B, T, H, E}, 3),
      wave({B, capacity, G, E}, 5),
      wave({B, capacity, G, E}, 7),
      {0, 9, 33}};
}

/// The definition, one query at a time, in float64.
torch::Tensor attend_by_definition(const Case& c) {
  const auto query = c.query.to(torch::kDouble);
  auto out = torch::zeros_like(query);
  const int64_t repeat = query.size(2) / c.key.size(2);
  for (int64_t b = 0; b < query.size(0); ++b) {
    for (int64_t t = 0; t < query.size(1); ++t) {
      for (int64_t h = 0; h < query.size(2); ++h) {
        const int64_t visible = c.lengths[static_cast<size_t>(b)] + t + 1;
        const auto keys = c.key[b].narrow(0, 0, visible).select(1, h / repeat).to(torch::kDouble);
        const auto values =
            c.value[b].narrow(0, 0, visible).select(1, h / repeat).to(torch::kDouble);
        const auto scores = keys.mv(query[b][t][h]) / std::sqrt(static_cast<double>(query.size(3)));
        out[b][t][h].copy_(values.t().mv(scores.softmax(0)));
      }
    }
  }
  return out;
}

TEST(CachedAttention, IsTheSameByPlainOperations) {
  const auto c = make_case(4, torch::kDouble);
  const auto tree = make_tree_layout({{-1, 0, 0, 1}, {-1, 0, 1}, {-1, 0, 1, 2}});
  for (const TreeLayout* layout : {static_cast<const TreeLayout*>(nullptr), &tree}) {
    const auto plain = cached_attention_plain(c.query, c.key, c.value, c.lengths, layout);
    const auto kernel = cached_attention(c.query, c.key, c.value, c.lengths, layout);
    EXPECT_LE(testing::max_difference(plain, kernel), 1e-13);
  }
}

TEST(CachedAttention, EqualsTheDefinitionForRowsOfDifferentLength) {
  for (const int64_t T : {1, 4}) {
    const auto wide = make_case(T, torch::kDouble);
    EXPECT_LE(
        testing::max_difference(
            cached_attention(wide.query, wide.key, wide.value, wide.lengths),
            attend_by_definition(wide)),
        1e-13);
    const auto narrow = make_case(T, torch::kFloat);
    EXPECT_LE(
        testing::max_difference(
            cached_attention(narrow.query, narrow.key, narrow.value, narrow.lengths),
            attend_by_definition(narrow)),
        64 * std::exp2(-24));
  }
}

TEST(CachedAttention, IgnoresWhatLiesBeyondTheLengths) {
  auto c = make_case(4, torch::kFloat);
  const auto before = cached_attention(c.query, c.key, c.value, c.lengths);
  for (int64_t b = 0; b < 3; ++b) {
    const int64_t end = c.lengths[static_cast<size_t>(b)] + 4;
    c.key[b].narrow(0, end, 40 - end).fill_(1e30);
    c.value[b].narrow(0, end, 40 - end).fill_(std::nan(""));
  }
  EXPECT_TRUE(cached_attention(c.query, c.key, c.value, c.lengths).equal(before));
}

TEST(CachedAttention, GivesATokenTheSameBitsAloneAndInABlock) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    const auto c = make_case(4, dtype);
    const auto block = cached_attention(c.query, c.key, c.value, c.lengths);
    for (int64_t t = 0; t < 4; ++t) {
      std::vector<int64_t> lengths = c.lengths;
      for (auto& length : lengths)
        length += t;
      const auto alone = cached_attention(c.query.narrow(1, t, 1), c.key, c.value, lengths);
      EXPECT_TRUE(alone.equal(block.narrow(1, t, 1))) << t;
    }
  }
}

TEST(CachedAttention, GivesATreesNodeTheBitsOfItsPath) {
  const std::vector<std::vector<int64_t>> parents = {
      {-1, 0, 0, 1, 2, 3}, {-1, 0, 1, 2, 3, 4}, {-1, 0, 0}};
  const auto tree = make_tree_layout(parents);
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    const auto c = make_case(6, dtype);
    const auto out = cached_attention(c.query, c.key, c.value, c.lengths, &tree);
    for (size_t b = 0; b < 3; ++b) {
      const auto row = static_cast<int64_t>(b);
      for (int64_t node = 0; node < std::ssize(parents[b]); ++node) {
        std::vector<int64_t> kept;
        for (int64_t i = node; i >= 0; i = parents[b][static_cast<size_t>(i)])
          kept.insert(kept.begin(), c.lengths[b] + i);
        for (int64_t j = c.lengths[b]; j-- > 0;)
          kept.insert(kept.begin(), j);
        const auto keys = torch::tensor(kept, torch::kLong);
        const auto alone = cached_attention(
            c.query[row][node].unsqueeze(0).unsqueeze(0),
            c.key[row].index_select(0, keys).unsqueeze(0),
            c.value[row].index_select(0, keys).unsqueeze(0),
            {static_cast<int64_t>(kept.size()) - 1});
        EXPECT_TRUE(alone[0][0].equal(out[row][node])) << row << " " << node;
      }
    }
  }
}

TEST(CachedAttention, GivesADraftBlockWhatBlockAttentionGives) {
  constexpr int64_t T = 4;
  const auto c = make_case(T, torch::kDouble);
  for (const BlockVisibility& visibility :
       {BlockVisibility{0, false}, BlockVisibility{0, true}, BlockVisibility{11, false},
        BlockVisibility{3, false}, BlockVisibility{11, true}}) {
    const auto out = cached_block_attention(c.query, c.key, c.value, c.lengths, visibility);
    for (int64_t b = 0; b < 3; ++b) {
      const int64_t length = c.lengths[static_cast<size_t>(b)];
      const auto context = [&](const torch::Tensor& x) {
        return x.narrow(0, b, 1).narrow(1, 0, length);
      };
      const auto block = [&](const torch::Tensor& x) {
        return x.narrow(0, b, 1).narrow(1, length, T);
      };
      const BlockLayout layout{
          torch::full({1, 1}, length, torch::kLong), torch::ones({1, 1}, torch::kBool),
          torch::zeros({1, 1}, torch::kLong), T};
      const auto expected = block_attention(
          {c.query.narrow(0, b, 1), context(c.key), context(c.value), block(c.key), block(c.value)},
          layout, visibility, AttentionMethod::kDense);
      EXPECT_LE(testing::max_difference(out.narrow(0, b, 1), expected), 1e-13)
          << b << " " << visibility.window << " " << visibility.is_causal_block;
    }
  }
}

TEST(CachedAttention, RefusesKeysOfAnotherShape) {
  const auto c = make_case(1, torch::kFloat);
  EXPECT_THROW(cached_attention(c.query, c.key, c.value.narrow(1, 0, 39), c.lengths), ShapeError);
}

}  // namespace
}  // namespace draftsmith::ops
