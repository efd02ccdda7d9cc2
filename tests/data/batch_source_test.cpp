// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/batch_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include <torch/types.h>

#include "draftsmith/base/error.h"

#include "tests/base/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_models.h"

namespace draftsmith::data {
namespace {

using testing::expect_error;
using testing::make_sequence;
using testing::TempFolder;

constexpr int64_t kVocabulary = 200;
const BlockRule kRule{4, 199, 7.0};

/// The settings that the tests change.
struct Limits {
  std::string overlong = "cut";
  int64_t max_length = 8192;
  int64_t tokens_per_batch = 49152;
  int64_t num_buckets = 6;
  int64_t num_anchors = 1024;
  int64_t seed = 0;
  std::string batching = "bucket";
  double held_out = 0;
};

BatchSource make_source(const std::vector<TokenSequence>& sequences, const Limits& limits) {
  DataSettings settings;
  settings.overlong = limits.overlong;
  settings.max_length = limits.max_length;
  settings.tokens_per_batch = limits.tokens_per_batch;
  settings.num_buckets = limits.num_buckets;
  settings.num_anchors = limits.num_anchors;
  settings.seed = limits.seed;
  settings.batching = limits.batching;
  settings.held_out = limits.held_out;
  const TempFolder folder;
  const auto path = testing::write_dataset_folder(folder, "d", sequences);
  // The mapped shard stays readable after the folder is gone.
  return BatchSource(TokenDataset::open(path, ""), settings, kVocabulary);
}

/// `length` tokens of which [begin, end) are supervised.
TokenSequence supervised(int64_t length, int64_t begin, int64_t end) {
  TokenSequence sequence = make_sequence(length, begin, 1, kVocabulary);
  std::fill(sequence.mask.begin() + end, sequence.mask.end(), uint8_t{0});
  return sequence;
}

void expect_report(const DataReport& report, const DataReport& wanted) {
  EXPECT_EQ(report.read, wanted.read);
  EXPECT_EQ(report.trained, wanted.trained);
  EXPECT_EQ(report.cut, wanted.cut);
  EXPECT_EQ(report.too_long, wanted.too_long);
  EXPECT_EQ(report.no_anchor, wanted.no_anchor);
  EXPECT_EQ(report.held_out, wanted.held_out);
  EXPECT_EQ(report.windowed, wanted.windowed);
  EXPECT_EQ(report.bare_windows, wanted.bare_windows);
  EXPECT_EQ(report.read, report.trained + report.held_out + report.too_long + report.no_anchor);
}

// F09: 40 tokens, supervised from 30 on.
TEST(BatchSource, TrainsTheOneLabelThatIsLeftAfterTheCut) {
  auto source = make_source({supervised(40, 30, 40)}, {.max_length = 32});
  expect_report(source.report(), {.read = 1, .trained = 1, .cut = 1});
  const auto batch = source.read({}, kRule);
  EXPECT_EQ(batch.tokens.ids.sizes(), (std::vector<int64_t>{1, 32}));
  EXPECT_EQ(batch.blocks.layout.anchors.numel(), 1);
  EXPECT_EQ(batch.blocks.layout.anchors.item<int64_t>(), 30);
  EXPECT_TRUE(
      torch::equal(batch.blocks.weights, torch::tensor({0.0F, 1.0F, 0.0F, 0.0F}).view({1, 1, 4})));
}

TEST(BatchSource, SkipsAndCountsSequencesWithNothingLeftAfterTheCut) {
  const std::vector<TokenSequence> sequences = {supervised(40, 30, 40), supervised(40, 0, 40)};
  for (const int64_t max_length : {31, 24}) {
    const auto source = make_source(sequences, {.max_length = max_length});
    expect_report(source.report(), {.read = 2, .trained = 1, .cut = 1, .no_anchor = 1});
  }
}

TEST(BatchSource, SkipsAndCountsSequencesWithoutTwoSupervisedTokensInARow) {
  const auto source = make_source(
      {supervised(10, 0, 0), supervised(10, 0, 1), supervised(10, 9, 10), TokenSequence{},
       supervised(1, 0, 1), supervised(10, 8, 10)},
      {});
  expect_report(source.report(), {.read = 6, .trained = 1, .no_anchor = 5});
}

TEST(BatchSource, SkipsAndCountsSequencesThatFitNoBatch) {
  const std::vector<TokenSequence> sequences = {
      supervised(4, 0, 4), supervised(40, 0, 40), supervised(8, 0, 8)};
  auto source = make_source(sequences, {.tokens_per_batch = 16});  // F15 (b)
  expect_report(source.report(), {.read = 3, .trained = 2, .too_long = 1});
  EXPECT_EQ(source.batches_of_epoch(0), 1);
  auto sorted = source.read({}, kRule).tokens.sequences;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, (std::vector<int64_t>{0, 2}));
  // After the cut to 16 the long one fits.
  const auto cut = make_source(sequences, {.max_length = 16, .tokens_per_batch = 16});
  expect_report(cut.report(), {.read = 3, .trained = 3, .cut = 1});
}

TEST(BatchSource, SkipsLongSequencesInsteadOfCuttingWhenAsked) {
  const auto source = make_source(
      {supervised(8, 0, 8), supervised(9, 0, 9)}, {.overlong = "skip", .max_length = 8});
  expect_report(source.report(), {.read = 2, .trained = 1, .too_long = 1});
}

TEST(BatchSource, TrainsAllTokensOfALongSequenceInWindows) {
  std::vector<TokenSequence> sequences = {
      make_sequence(8, 0, 1), make_sequence(21, 0, 2), make_sequence(30, 29, 3)};
  sequences[1].mask[9] = 0;
  auto source =
      make_source(sequences, {.overlong = "window", .max_length = 8, .tokens_per_batch = 8});
  expect_report(source.report(), {.read = 3, .trained = 2, .windowed = 1, .no_anchor = 1});
  ASSERT_EQ(source.batches_of_epoch(0), 4);
  std::vector<int64_t> begins;
  for (int64_t i = 0; i < 4; ++i) {
    const auto batch = source.read({0, i}, kRule);
    ASSERT_EQ(batch.tokens.parts.size(), 1U);
    const RowPart part = batch.tokens.parts[0];
    if (part.sequence == 0) continue;
    begins.push_back(part.sequence_begin);
    const auto& ids = sequences[1].ids;
    const std::vector<int64_t> wanted(
        ids.begin() + part.sequence_begin, ids.begin() + part.sequence_begin + part.length);
    EXPECT_TRUE(torch::equal(batch.tokens.ids[0], torch::tensor(wanted, torch::kLong)));
    EXPECT_EQ(batch.tokens.mask.eq(0).sum().item<int64_t>(), part.sequence_begin == 8 ? 1 : 0);
  }
  std::sort(begins.begin(), begins.end());
  EXPECT_EQ(begins, (std::vector<int64_t>{0, 8, 16}));
}

TEST(BatchSource, CountsTheWindowsThatItLeavesOut) {
  auto answers_apart = supervised(24, 0, 24);
  std::fill(answers_apart.mask.begin() + 8, answers_apart.mask.begin() + 16, uint8_t{0});
  const auto at_the_border = supervised(16, 7, 9);  // no window has two of its own: not trained
  const auto source =
      make_source({answers_apart, at_the_border}, {.overlong = "window", .max_length = 8});
  expect_report(
      source.report(), {.read = 2, .trained = 1, .windowed = 1, .no_anchor = 1, .bare_windows = 1});
  const auto lines = source.describe();
  EXPECT_NE(
      lines.at(1).find("1 in windows; windows left out without trainable tokens: 1"),
      std::string::npos)
      << lines.at(1);
}

TEST(BatchSource, CountsTheSequencesThatTheBatchesBeforeACursorHold) {
  std::vector<TokenSequence> sequences;
  for (uint64_t i = 0; i < 12; ++i)
    sequences.push_back(make_sequence(10, 0, i));
  for (const char* batching : {"bucket", "pack"}) {
    auto source =
        make_source(sequences, {.max_length = 20, .tokens_per_batch = 40, .batching = batching});
    std::set<int64_t> seen;
    for (DataCursor cursor; cursor.batch < source.batches_of_epoch(0);) {
      const auto report = source.report(cursor);
      EXPECT_EQ(report.trained, static_cast<int64_t>(seen.size()));
      EXPECT_EQ(report.read, 12);
      const auto batch = source.read(cursor, kRule);
      seen.insert(batch.tokens.sequences.begin(), batch.tokens.sequences.end());
      cursor = batch.next;
    }
    EXPECT_EQ(source.report({0, source.batches_of_epoch(0)}).trained, 12);
    EXPECT_EQ(source.report({3, 1}).trained, 12);
  }
  // A sequence in windows is one.
  const auto windows = make_source(
      {make_sequence(16, 0, 1)}, {.overlong = "window", .max_length = 8, .tokens_per_batch = 8});
  ASSERT_EQ(windows.batches_of_epoch(0), 2);
  for (int64_t i = 0; i < 3; ++i)
    EXPECT_EQ(windows.report({0, i}).trained, i == 0 ? 0 : 1);
}

TEST(BatchSource, KeepsAShareForEvaluationThatIsNeverTrained) {
  std::vector<TokenSequence> sequences;
  for (uint64_t i = 0; i < 40; ++i)
    sequences.push_back(make_sequence(10, 0, i));
  const auto numbers = [](BatchSource& source, int64_t epoch) {
    std::vector<int64_t> all;
    for (int64_t i = 0; i < source.batches_of_epoch(epoch); ++i)
      for (const int64_t number : source.read({epoch, i}, kRule).tokens.sequences)
        all.push_back(number);
    return all;
  };
  auto source = make_source(sequences, {.tokens_per_batch = 30, .held_out = 0.2});
  expect_report(source.report(), {.read = 40, .trained = 32, .held_out = 8});
  auto held_out = source.held_out();
  ASSERT_TRUE(held_out.has_value());
  const auto kept = numbers(*held_out, 0);
  EXPECT_EQ(kept.size(), 8U);
  auto all = numbers(source, 0);
  EXPECT_EQ(all.size(), 32U);
  all.insert(all.end(), kept.begin(), kept.end());
  std::sort(all.begin(), all.end());
  for (int64_t i = 0; i < 40; ++i)
    EXPECT_EQ(all[static_cast<size_t>(i)], i);
  EXPECT_FALSE(make_source(sequences, {}).held_out().has_value());
  expect_error<DataError>(
      [&] { make_source({sequences[0]}, {.held_out = 0.1}); }, {"data.held_out"});
}

TEST(BatchSource, RefusesADatasetWithNothingToTrain) {
  const auto expect_refused = [](const std::vector<TokenSequence>& sequences, const Limits& limits,
                                 std::string_view count) {
    expect_error<DataError>([&] { make_source(sequences, limits); }, {"dataset", count});
  };
  expect_refused(
      {supervised(40, 0, 40), supervised(50, 0, 50)}, {.tokens_per_batch = 16},
      "2 too long");  // F15 (e)
  expect_refused({supervised(40, 30, 40)}, {.max_length = 24}, "1 without");
  expect_refused({supervised(5, 0, 0)}, {}, "1 without");
}

TEST(BatchSource, NamesTheRowOfAnIdOutsideTheVocabulary) {
  auto bad = supervised(5, 0, 5);
  bad.ids[3] = kVocabulary;
  expect_error<DataError>(
      [&] {
        make_source({supervised(5, 0, 5), bad}, {});
      },
      {"token 3", "200", "row 1"});
}

class BatchOrder : public ::testing::Test {
 protected:
  BatchOrder() {
    for (int64_t i = 0; i < 30; ++i)
      sequences_.push_back(make_sequence(4 + i % 13, 1, static_cast<uint64_t>(i), kVocabulary));
  }

  BatchSource source() const {
    return make_source(
        sequences_, {.tokens_per_batch = 48, .num_buckets = 3, .num_anchors = 9, .seed = 5});
  }

  std::vector<TokenSequence> sequences_;
};

void expect_same(const SourceBatch& left, const SourceBatch& right) {
  EXPECT_EQ(left.tokens.sequences, right.tokens.sequences);
  EXPECT_TRUE(torch::equal(left.tokens.ids, right.tokens.ids));
  EXPECT_TRUE(torch::equal(left.tokens.mask, right.tokens.mask));
  EXPECT_TRUE(torch::equal(left.blocks.layout.anchors, right.blocks.layout.anchors));
  EXPECT_TRUE(torch::equal(left.blocks.weights, right.blocks.weights));
  EXPECT_EQ(left.next.epoch, right.next.epoch);
  EXPECT_EQ(left.next.batch, right.next.batch);
}

TEST_F(BatchOrder, HasEachSequenceOnceInEachEpochAndAnotherOrderInTheNext) {
  auto whole = source();
  std::vector<std::vector<int64_t>> orders;
  DataCursor cursor;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> order;
    for (int64_t i = 0; i < whole.batches_of_epoch(epoch); ++i) {
      const auto batch = whole.read(cursor, kRule);
      EXPECT_EQ(batch.next.epoch, epoch);
      EXPECT_LE(batch.tokens.ids.numel(), 48);
      EXPECT_LE(batch.blocks.layout.keep.sum().item<int64_t>(), 9);
      order.insert(order.end(), batch.tokens.sequences.begin(), batch.tokens.sequences.end());
      cursor = batch.next;
    }
    orders.push_back(order);
    std::sort(order.begin(), order.end());
    for (int64_t i = 0; i < 30; ++i)
      ASSERT_EQ(order.at(static_cast<size_t>(i)), i);
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
}

// F10: a resumed run goes on with the very batches of the unbroken one.
TEST_F(BatchOrder, IsTheSameWhenReadingStartsAtACursor) {
  auto unbroken = source();
  std::vector<std::pair<DataCursor, SourceBatch>> wanted;
  DataCursor cursor;
  for (int i = 0; i < 25; ++i) {
    auto batch = unbroken.read(cursor, kRule);
    const DataCursor next = batch.next;
    wanted.emplace_back(cursor, std::move(batch));
    cursor = next;
  }
  EXPECT_GE(cursor.epoch, 2);
  for (size_t i = 0; i < wanted.size(); i += 3) {
    SCOPED_TRACE(i);
    auto resumed = source();
    expect_same(resumed.read(wanted[i].first, kRule), wanted[i].second);
  }
}

// A batch that was read ahead for another place or another rule is not given out.
TEST_F(BatchOrder, DoesNotDependOnWhatWasReadBefore) {
  auto jumping = source();
  const BlockRule other{6, 198, 0};
  jumping.read({}, kRule);
  expect_same(jumping.read({0, 1}, other), source().read({0, 1}, other));
  expect_same(jumping.read({1, 2}, kRule), source().read({1, 2}, kRule));
  expect_same(jumping.read({0, 1}, kRule), source().read({0, 1}, kRule));
  BatchSource moved = std::move(jumping);
  expect_same(moved.read({0, 2}, kRule), source().read({0, 2}, kRule));
}

TEST_F(BatchOrder, GoesOnWithTheNextEpochPastTheEndOfOne) {
  auto whole = source();
  const int64_t count = whole.batches_of_epoch(0);
  expect_same(whole.read({0, count}, kRule), whole.read({1, 0}, kRule));
}

TEST_F(BatchOrder, DrawsNewAnchorsInEachEpoch) {
  auto whole = make_source({make_sequence(100, 1, 1, kVocabulary)}, {.num_anchors = 9});
  EXPECT_FALSE(torch::equal(
      whole.read({0, 0}, kRule).blocks.layout.anchors,
      whole.read({1, 0}, kRule).blocks.layout.anchors));
}

TEST_F(BatchOrder, KeepsIdsAndMaskOfTheDatasetBesideEachOther) {
  auto whole = source();
  for (int64_t i = 0; i < whole.batches_of_epoch(0); ++i) {
    const auto tokens = whole.read({0, i}, kRule).tokens;
    for (size_t b = 0; b < tokens.sequences.size(); ++b) {
      const auto& wanted = sequences_[static_cast<size_t>(tokens.sequences[b])];
      const auto row = static_cast<int64_t>(b);
      ASSERT_EQ(tokens.lengths[b], static_cast<int64_t>(wanted.ids.size()));
      const auto ids = tokens.ids[row].slice(0, 0, tokens.lengths[b]);
      EXPECT_TRUE(torch::equal(ids, torch::tensor(wanted.ids, torch::kLong)));
      const std::vector<int64_t> mask(wanted.mask.begin(), wanted.mask.end());
      EXPECT_EQ(tokens.mask[row].sum().item<int64_t>(), tokens.lengths[b] - 1);
      EXPECT_EQ(tokens.mask[row][0].item<int64_t>(), mask[0]);
    }
  }
}

}  // namespace
}  // namespace draftsmith::data
