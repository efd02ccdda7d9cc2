// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "draftsmith/base/random.h"
#include "draftsmith/ops/block_attention.h"

namespace draftsmith::ops {
namespace {

BlockLayout make_layout(
    std::vector<int64_t> anchors,
    int64_t rows,
    int64_t block_size,
    std::vector<bool> keep = {}) {
  const auto N = static_cast<int64_t>(anchors.size()) / rows;
  BlockLayout layout{
      torch::tensor(anchors, torch::kLong).view({rows, N}), torch::ones({rows, N}, torch::kBool),
      torch::zeros({rows, N}, torch::kLong), block_size};
  for (size_t i = 0; i < keep.size(); ++i)
    layout.keep.view({-1})[static_cast<int64_t>(i)].fill_(static_cast<bool>(keep[i]));
  return layout;
}

/// The predicate of one query and one key, written out element by element.
bool is_visible(
    const BlockLayout& layout,
    const BlockVisibility& rule,
    int64_t S,
    int64_t b,
    int64_t r,
    int64_t j) {
  const int64_t K = layout.block_size;
  const int64_t n = r / K;
  const int64_t k = r % K;
  if (!layout.keep[b][n].item<bool>()) return false;
  const int64_t anchor = layout.anchors[b][n].item<int64_t>();
  if (j < S) {
    const bool is_context = j < anchor && j >= layout.context_begin[b][n].item<int64_t>();
    return is_context && (rule.window == 0 || anchor + k - j <= rule.window - 1);
  }
  const bool is_own = (j - S) / K == n;
  return is_own && (!rule.is_causal_block || (j - S) % K <= k);
}

void expect_elementwise(const BlockLayout& layout, const BlockVisibility& rule, int64_t S) {
  const int64_t B = layout.anchors.size(0);
  const int64_t rows = layout.anchors.size(1) * layout.block_size;
  const auto mask = make_block_mask(layout, rule, S);
  ASSERT_EQ(mask.sizes(), at::IntArrayRef({B, rows, S + rows}));
  ASSERT_EQ(mask.scalar_type(), torch::kBool);
  const auto values = mask.contiguous();
  const bool* value = values.data_ptr<bool>();
  for (int64_t b = 0; b < B; ++b)
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < S + rows; ++j, ++value)
        ASSERT_EQ(*value, is_visible(layout, rule, S, b, r, j)) << b << " " << r << " " << j;
}

std::vector<int64_t> visible_keys(const torch::Tensor& mask, int64_t row) {
  const auto index = mask[0][row].nonzero().squeeze(1).contiguous();
  return {index.data_ptr<int64_t>(), index.data_ptr<int64_t>() + index.numel()};
}

TEST(BlockMask, EqualsTheElementwisePredicateOnRandomLayouts) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const auto draw = [&](uint64_t what, uint64_t below) {
      return static_cast<int64_t>(hash_key({seed, what}) % below);
    };
    const int64_t S = 1 + draw(0, 14);
    const int64_t B = 1 + draw(1, 2);
    const int64_t N = 1 + draw(2, 3);
    BlockLayout layout =
        make_layout(std::vector<int64_t>(static_cast<size_t>(B * N), 0), B, 1 + draw(3, 5));
    for (int64_t i = 0; i < B * N; ++i) {
      const auto part = static_cast<uint64_t>(10 + 3 * i);
      const int64_t anchor = draw(part, static_cast<uint64_t>(S));
      layout.anchors.view({-1})[i] = anchor;
      layout.context_begin.view({-1})[i] = draw(part + 1, static_cast<uint64_t>(anchor + 1));
      layout.keep.view({-1})[i] = draw(part + 2, 4) != 0;
    }
    for (const int64_t window : {0, 1, 2, 4, 100})
      for (const bool is_causal : {false, true})
        expect_elementwise(layout, {window, is_causal}, S);
  }
}

TEST(BlockMask, EqualsTheElementwisePredicateAtTheEdges) {
  auto layout = make_layout({0, 5, 11, 0, 3, 3}, 2, 4, {true, true, true, false, true, true});
  layout.context_begin[0][1] = 5;  // the anchor opens its document
  layout.context_begin[1][1] = 2;
  for (const int64_t window : {0, 1, 3, 4, 12})
    for (const bool is_causal : {false, true})
      expect_elementwise(layout, {window, is_causal}, 12);
}

TEST(BlockMask, MovesTheWindowWithTheSlot) {
  // The unit test of SpecForge: a = 6, W = 4, K = 4, S = 12.
  const auto mask = make_block_mask(make_layout({6}, 1, 4), {4, true}, 12);
  EXPECT_EQ(visible_keys(mask, 0), (std::vector<int64_t>{3, 4, 5, 12}));
  EXPECT_EQ(visible_keys(mask, 1), (std::vector<int64_t>{4, 5, 12, 13}));
  EXPECT_EQ(visible_keys(mask, 2), (std::vector<int64_t>{5, 12, 13, 14}));
  EXPECT_EQ(visible_keys(mask, 3), (std::vector<int64_t>{12, 13, 14, 15}));
}

TEST(BlockMask, KeepsOwnSlotsInAWindowOfOne) {
  const auto mask = make_block_mask(make_layout({6}, 1, 3), {1, true}, 12);
  EXPECT_EQ(visible_keys(mask, 0), (std::vector<int64_t>{12}));
  EXPECT_EQ(visible_keys(mask, 2), (std::vector<int64_t>{12, 13, 14}));
}

TEST(BlockMask, ShowsABlockItsContextAndItselfOnly) {
  // F01 (a): anchors 3 and 5, K = 4, S = 12.
  const auto mask = make_block_mask(make_layout({3, 5}, 1, 4), {}, 12);
  for (int64_t k = 0; k < 4; ++k) {
    EXPECT_EQ(visible_keys(mask, k), (std::vector<int64_t>{0, 1, 2, 12, 13, 14, 15}));
    EXPECT_EQ(visible_keys(mask, 4 + k), (std::vector<int64_t>{0, 1, 2, 3, 4, 16, 17, 18, 19}));
  }
  EXPECT_EQ(mask.sum().item<int64_t>(), 64);
}

TEST(BlockMask, ShowsNothingToABlockThatIsNotKept) {
  const auto mask = make_block_mask(make_layout({3, 5}, 1, 4, {false, true}), {}, 12);
  EXPECT_EQ(mask[0].narrow(0, 0, 4).sum().item<int64_t>(), 0);
  EXPECT_EQ(mask[0].narrow(0, 4, 4).sum().item<int64_t>(), 36);
}

}  // namespace
}  // namespace draftsmith::ops
