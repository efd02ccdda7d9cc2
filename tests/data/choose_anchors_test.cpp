// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <torch/types.h>

#include "draftsmith/base/random.h"
#include "draftsmith/data/draft_blocks.h"

namespace draftsmith::data {
namespace {

using Places = std::set<std::pair<int64_t, int64_t>>;  // (sequence, position)

BlockRows all_supervised(int64_t rows, int64_t length) {
  return {
      torch::zeros({rows, length}, torch::kLong), torch::ones({rows, length}, torch::kByte), {}};
}

BlockRows with_mask(const std::vector<int64_t>& mask) {
  const auto row = torch::tensor(mask, torch::kLong).unsqueeze(0);
  return {torch::zeros_like(row), row.to(torch::kByte), {}};
}

Places places_of(const Anchors& anchors, const std::vector<int64_t>& sequences) {
  Places places;
  for (int64_t b = 0; b < anchors.keep.size(0); ++b)
    for (int64_t n = 0; n < anchors.keep.size(1); ++n)
      if (anchors.keep[b][n].item<bool>())
        places.emplace(sequences[static_cast<size_t>(b)], anchors.positions[b][n].item<int64_t>());
  return places;
}

std::vector<int64_t> positions_of(const BlockRows& rows, const AnchorRule& rule) {
  std::vector<int64_t> positions;
  for (const auto& [sequence, position] :
       places_of(choose_anchors(rows, std::vector<int64_t>{0}, rule), {0}))
    positions.push_back(position);
  return positions;
}

TEST(ChooseAnchors, GivesTheEligiblePositionsOfTheWorkedExample) {
  const auto rows = with_mask({0, 0, 0, 1, 1, 1, 0, 1, 1, 0});
  EXPECT_EQ(positions_of(rows, {.num_anchors = 100}), (std::vector<int64_t>{3, 4, 7}));
}

TEST(ChooseAnchors, NeedsTwoSupervisedTokensOfOneDocument) {
  auto rows = with_mask({1, 1, 1, 1, 1, 1, 1, 1});
  rows.document_ids = torch::tensor({0, 0, 0, 1, 1, -1, -1, -1}, torch::kLong).unsqueeze(0);
  EXPECT_EQ(positions_of(rows, {.num_anchors = 100}), (std::vector<int64_t>{0, 1, 3}));
}

TEST(ChooseAnchors, SortsARowAndPadsItAtItsEnd) {
  auto rows = all_supervised(2, 9);
  rows.mask[1].slice(0, 3).zero_();
  const auto anchors = choose_anchors(rows, std::vector<int64_t>{0, 1}, {.num_anchors = 100});
  EXPECT_TRUE(torch::equal(
      anchors.positions, torch::tensor({0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 0, 0, 0, 0, 0, 0})
                             .to(torch::kLong)
                             .view({2, 8})));
  EXPECT_EQ(anchors.keep[0].sum().item<int64_t>(), 8);
  EXPECT_TRUE(
      torch::equal(anchors.keep[1], torch::tensor({1, 1, 0, 0, 0, 0, 0, 0}).to(torch::kBool)));
}

TEST(ChooseAnchors, GivesOneBlockThatIsNotKeptWhenNothingIsEligible) {
  for (const std::vector<int64_t>& mask :
       {std::vector<int64_t>{0, 0, 0}, {1, 0, 0}, {0, 0, 1}, {1, 0, 1}, {1}}) {
    const auto anchors =
        choose_anchors(with_mask(mask), std::vector<int64_t>{0}, {.num_anchors = 5});
    EXPECT_EQ(anchors.positions.sizes(), (std::vector<int64_t>{1, 1}));
    EXPECT_FALSE(anchors.keep.any().item<bool>());
  }
}

TEST(ChooseAnchors, GivesASequenceTheSameKeysInAnyBatch) {
  const AnchorRule rule{.num_anchors = 1000, .anchors_per_sequence = 5, .seed = 3, .epoch = 2};
  const std::vector<int64_t> sequences = {7, 40, 2};
  const auto together =
      places_of(choose_anchors(all_supervised(3, 50), sequences, rule), sequences);
  Places apart;
  for (const int64_t sequence : sequences) {
    // Alone and with padding behind it, as in a batch of longer sequences.
    auto rows = all_supervised(1, 80);
    rows.mask.slice(1, 50).zero_();
    apart.merge(places_of(choose_anchors(rows, std::vector<int64_t>{sequence}, rule), {sequence}));
  }
  EXPECT_EQ(together.size(), 15U);
  EXPECT_EQ(together, apart);
}

TEST(ChooseAnchors, DependsOnSeedEpochAndSequence) {
  const auto rows = all_supervised(1, 200);
  const auto draw = [&](uint64_t seed, uint64_t epoch, int64_t sequence) {
    const AnchorRule rule{.num_anchors = 20, .seed = seed, .epoch = epoch};
    std::vector<int64_t> positions;
    for (const auto& place :
         places_of(choose_anchors(rows, std::vector<int64_t>{sequence}, rule), {sequence}))
      positions.push_back(place.second);
    return positions;
  };
  EXPECT_EQ(draw(1, 1, 1), draw(1, 1, 1));
  EXPECT_NE(draw(1, 1, 1), draw(2, 1, 1));
  EXPECT_NE(draw(1, 1, 1), draw(1, 2, 1));
  EXPECT_NE(draw(1, 1, 1), draw(1, 1, 2));
}

TEST(ChooseAnchors, TakesTheSmallestKeysOfTheWholeBatch) {
  const AnchorRule rule{.num_anchors = 12, .seed = 5, .epoch = 1};
  const std::vector<int64_t> sequences = {3, 8, 9};
  std::map<uint64_t, std::pair<int64_t, int64_t>> by_key;
  for (const int64_t sequence : sequences) {
    for (int64_t i = 0; i < 29; ++i) {
      const uint64_t key =
          hash_key({5, 1, static_cast<uint64_t>(sequence), static_cast<uint64_t>(i)});
      by_key[key] = {sequence, i};
    }
  }
  Places wanted;
  for (const auto& [key, place] : by_key) {
    if (wanted.size() == 12) break;
    wanted.insert(place);
  }
  const auto anchors = choose_anchors(all_supervised(3, 30), sequences, rule);
  EXPECT_EQ(places_of(anchors, sequences), wanted);
  int64_t widest = 0;
  for (int64_t b = 0; b < 3; ++b)
    widest = std::max(widest, anchors.keep[b].sum().item<int64_t>());
  EXPECT_EQ(anchors.keep.size(1), widest);
}

TEST(ChooseAnchors, OffersTheSmallestKeysOfASequenceUpToItsCap) {
  const auto rows = all_supervised(2, 100);
  const auto all = choose_anchors(rows, std::vector<int64_t>{0, 1}, {.num_anchors = 1000});
  EXPECT_EQ(all.keep.sum().item<int64_t>(), 2 * 99);
  const auto capped = choose_anchors(
      rows, std::vector<int64_t>{0, 1}, {.num_anchors = 1000, .anchors_per_sequence = 7});
  EXPECT_EQ(capped.keep[0].sum().item<int64_t>(), 7);
  EXPECT_EQ(capped.keep[1].sum().item<int64_t>(), 7);
}

TEST(ChooseAnchors, DrawsUniformlyFromLongAndShortSequences) {
  // Each of 4 x 50 positions has a chance of 1/5 in each of 500 epochs: mean 100, standard
  // deviation sqrt(500 x 0.2 x 0.8) = 8.9; six of them, over 200 positions.
  constexpr int64_t kEpochs = 500;
  std::map<std::pair<int64_t, int64_t>, int64_t> counts;
  const std::vector<int64_t> sequences = {0, 1, 2, 3};
  for (uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const auto anchors =
        choose_anchors(all_supervised(4, 51), sequences, {.num_anchors = 40, .epoch = epoch});
    for (const auto& place : places_of(anchors, sequences))
      ++counts[place];
  }
  ASSERT_EQ(counts.size(), 200U);
  for (const auto& [place, count] : counts)
    EXPECT_NEAR(static_cast<double>(count), 100, 6 * std::sqrt(80.0)) << place.second;
}

// Packed rows: the keys are those that the sequences have in rows of their own.
TEST(ChooseAnchors, GivesAPackedSequenceTheKeysItHasAlone) {
  const AnchorRule rule{.num_anchors = 14, .anchors_per_sequence = 5, .seed = 3, .epoch = 2};
  const auto apart = places_of(
      choose_anchors(all_supervised(3, 40), std::vector<int64_t>{7, 40, 2}, rule), {7, 40, 2});
  auto rows = all_supervised(2, 90);
  rows.document_ids = torch::full({2, 90}, -1, torch::kLong);
  rows.document_ids[0].slice(0, 0, 40).fill_(0);
  rows.document_ids[0].slice(0, 40, 80).fill_(1);
  rows.document_ids[1].slice(0, 0, 40).fill_(0);
  const std::vector<RowPart> parts = {{0, 0, 40, 40, 0}, {0, 40, 40, 2, 0}, {1, 0, 40, 7, 0}};
  const auto anchors = choose_anchors(rows, parts, rule);
  Places together;
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t n = 0; n < anchors.keep.size(1); ++n) {
      if (!anchors.keep[b][n].item<bool>()) continue;
      const int64_t place = anchors.positions[b][n].item<int64_t>();
      const int64_t sequence = b == 1 ? 7 : place < 40 ? 40 : 2;
      together.emplace(sequence, place % 40);
    }
  }
  EXPECT_EQ(together.size(), 14U);
  EXPECT_EQ(together, apart);
}

TEST(FindFirstAnchor, NeedsTwoSupervisedTokensInARow) {
  EXPECT_EQ(find_first_anchor({0, 1, 1}), 1);
  EXPECT_EQ(find_first_anchor({1, 1, 1}), 0);
  EXPECT_EQ(find_first_anchor({1, 0, 1}), -1);
  EXPECT_EQ(find_first_anchor({0, 0, 1}), -1);
  EXPECT_EQ(find_first_anchor({1}), -1);
  EXPECT_EQ(find_first_anchor({}), -1);
}

}  // namespace
}  // namespace draftsmith::data
