// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include <torch/types.h>

#include "draftsmith/data/batch_source.h"

#include "tests/support/temp_folder.h"
#include "tests/support/tiny_models.h"

namespace draftsmith::data {
namespace {

using testing::make_sequence;
using testing::TempFolder;

const BlockRule kRule{4, 199, 7.0};

class PackedSource : public ::testing::Test {
 protected:
  PackedSource() {
    for (int64_t i = 0; i < 30; ++i)
      sequences_.push_back(make_sequence(4 + i % 13, 1, static_cast<uint64_t>(i)));
  }

  BatchSource source(const std::string& batching = "pack", int64_t num_anchors = 1000) const {
    DataSettings settings;
    settings.batching = batching;
    settings.max_length = 32;
    settings.tokens_per_batch = 96;
    settings.num_anchors = num_anchors;
    const TempFolder folder;
    const auto path = testing::write_dataset_folder(folder, "d", sequences_);
    return BatchSource(TokenDataset::open(path, ""), settings, 200);
  }

  std::vector<TokenSequence> sequences_;
};

TEST_F(PackedSource, FillsRowsWithWholeSequencesEachOnceAnEpoch) {
  auto packed = source();
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    std::vector<int64_t> seen;
    for (int64_t i = 0; i < packed.batches_of_epoch(epoch); ++i) {
      const auto tokens = packed.read({epoch, i}, kRule).tokens;
      EXPECT_LE(tokens.ids.numel(), 96);
      EXPECT_LE(tokens.ids.size(1), 32);
      ASSERT_EQ(tokens.parts.size(), tokens.sequences.size());
      auto expected_documents = torch::full_like(tokens.ids, -1);
      int64_t number = 0;
      for (size_t p = 0; p < tokens.parts.size(); ++p) {
        const RowPart& part = tokens.parts[p];
        number = p > 0 && tokens.parts[p - 1].row == part.row ? number + 1 : 0;
        seen.push_back(part.sequence);
        const auto& wanted = sequences_.at(static_cast<size_t>(part.sequence));
        EXPECT_EQ(part.length, static_cast<int64_t>(wanted.ids.size()));
        EXPECT_EQ(part.sequence_begin, 0);
        const auto ids = tokens.ids[part.row].narrow(0, part.row_begin, part.length);
        EXPECT_TRUE(torch::equal(ids, torch::tensor(wanted.ids, torch::kLong)));
        expected_documents[part.row].narrow(0, part.row_begin, part.length).fill_(number);
      }
      EXPECT_TRUE(torch::equal(tokens.document_ids, expected_documents));
    }
    std::sort(seen.begin(), seen.end());
    ASSERT_EQ(seen.size(), 30U);
    for (int64_t i = 0; i < 30; ++i)
      EXPECT_EQ(seen[static_cast<size_t>(i)], i);
  }
  EXPECT_LT(packed.batches_of_epoch(0), 6);  // 294 tokens, 96 in a batch
}

/// What a block is made of, whatever row it stands in.
using Block = std::tuple<int64_t, int64_t, std::vector<int64_t>, std::vector<float>>;

/// All blocks of an epoch by (sequence, position of the anchor in the sequence).
std::vector<Block> blocks_of_epoch(BatchSource& source) {
  std::vector<Block> found;
  for (int64_t i = 0; i < source.batches_of_epoch(0); ++i) {
    const auto batch = source.read({0, i}, kRule);
    const auto& layout = batch.blocks.layout;
    for (const RowPart& part : batch.tokens.parts) {
      for (int64_t n = 0; n < layout.anchors.size(1); ++n) {
        const int64_t anchor = layout.anchors[part.row][n].item<int64_t>();
        const bool is_here = layout.keep[part.row][n].item<bool>() && anchor >= part.row_begin &&
                             anchor < part.row_begin + part.length;
        if (!is_here) continue;
        const int64_t position = anchor - part.row_begin;
        EXPECT_EQ(layout.context_begin[part.row][n].item<int64_t>(), part.row_begin);
        EXPECT_EQ(batch.blocks.positions[part.row][n][0].item<int64_t>(), position);
        EXPECT_EQ(batch.blocks.context_positions[part.row][anchor].item<int64_t>(), position);
        std::vector<int64_t> labels;
        std::vector<float> weights;
        for (int64_t k = 0; k < 4; ++k) {
          weights.push_back(batch.blocks.weights[part.row][n][k].item<float>());
          const int64_t label = batch.blocks.labels[part.row][n][k].item<int64_t>();
          labels.push_back(weights.back() > 0 ? label : -1);
          const int64_t teacher = batch.blocks.teacher_rows[part.row][n][k].item<int64_t>();
          EXPECT_EQ(teacher, weights.back() > 0 ? anchor + k - 1 : -1);
        }
        found.emplace_back(part.sequence, position, labels, weights);
      }
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

TEST_F(PackedSource, MakesTheBlocksThatTheSequencesHaveInRowsOfTheirOwn) {
  auto packed = source();
  auto alone = source("bucket");
  const auto blocks = blocks_of_epoch(packed);
  EXPECT_GT(blocks.size(), 200U);
  EXPECT_EQ(blocks, blocks_of_epoch(alone));
}

TEST_F(PackedSource, HoldsTheLimitOfAnchorsInEachBatch) {
  auto packed = source("pack", 9);
  for (int64_t i = 0; i < packed.batches_of_epoch(0); ++i)
    EXPECT_EQ(packed.read({0, i}, kRule).blocks.layout.keep.sum().item<int64_t>(), 9);
}

TEST_F(PackedSource, GoesOnAtACursor) {
  auto unbroken = source();
  auto cursor = unbroken.read(unbroken.read({}, kRule).next, kRule).next;
  const auto wanted = unbroken.read(cursor, kRule);
  const auto resumed = source().read(cursor, kRule);
  EXPECT_EQ(resumed.tokens.sequences, wanted.tokens.sequences);
  EXPECT_TRUE(torch::equal(resumed.tokens.ids, wanted.tokens.ids));
  EXPECT_TRUE(torch::equal(resumed.blocks.layout.anchors, wanted.blocks.layout.anchors));
}

}  // namespace
}  // namespace draftsmith::data
