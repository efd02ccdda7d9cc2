// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/mixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <mutex>
#include <set>

#include "draftsmith/base/error.h"
#include "draftsmith/data/batch_source.h"

#include "tests/base/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_models.h"

namespace draftsmith::data {
namespace {

using testing::make_sequence;
using testing::TempFolder;

/// Sources of these many batches, the same in every epoch.
Mixture make_mixture(std::vector<double> weights, std::vector<int64_t> sizes) {
  return Mixture(std::move(weights), [sizes](int64_t source, int64_t) {
    return sizes.at(static_cast<size_t>(source));
  });
}

TEST(Mixture, OfOneSourceIsThatSource) {
  const auto mixture = make_mixture({3}, {5});
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    EXPECT_EQ(mixture.batches_of_epoch(epoch), 5);
    for (int64_t i = 0; i < 5; ++i) {
      const Turn turn = mixture.turn(epoch, i);
      EXPECT_EQ(turn.epoch, epoch);
      EXPECT_EQ(turn.batch, i);
    }
  }
}

TEST(Mixture, KnowsTheFirstBatchOfAnEpochThatIsNotPlanned) {
  std::set<int64_t> planned;
  const Mixture mixture({1, 3}, [&](int64_t, int64_t epoch) {
    planned.insert(epoch);
    return 5;
  });
  EXPECT_TRUE(mixture.has_batch(7, 0));
  EXPECT_EQ(planned, (std::set<int64_t>{0}));
  EXPECT_FALSE(mixture.has_batch(7, mixture.batches_of_epoch(7)));
  for (int64_t epoch = 0; epoch < 8; ++epoch)
    EXPECT_GE(mixture.batches_of_epoch(epoch), 1);
}

TEST(Mixture, KeepsItsSharesAtEveryPlace) {
  const auto mixture = make_mixture({5, 3, 2}, {40, 70, 11});
  std::vector<int64_t> taken(3, 0);
  for (int64_t i = 0; i < mixture.batches_of_epoch(0); ++i) {
    EXPECT_EQ(mixture.taken_before(0, i), taken);
    ++taken.at(static_cast<size_t>(mixture.turn(0, i).source));
    for (size_t s = 0; s < 3; ++s)
      EXPECT_LT(
          std::abs(
              static_cast<double>(taken[s]) - mixture.shares()[s] * static_cast<double>(i + 1)),
          1.0 + 1e-9);
  }
}

TEST(Mixture, ReadsEverySourceThroughInEveryEpochAndGoesOnWhereItStood) {
  const std::vector<int64_t> sizes = {40, 70, 11};
  const auto mixture = make_mixture({5, 3, 2}, sizes);
  std::vector<std::pair<int64_t, int64_t>> next(3, {0, 0});
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    for (int64_t i = 0; i < mixture.batches_of_epoch(epoch); ++i) {
      const Turn turn = mixture.turn(epoch, i);
      auto& [own_epoch, own_batch] = next.at(static_cast<size_t>(turn.source));
      ASSERT_EQ(std::make_pair(turn.epoch, turn.batch), std::make_pair(own_epoch, own_batch));
      if (++own_batch == sizes[static_cast<size_t>(turn.source)]) {
        ++own_epoch;
        own_batch = 0;
      }
    }
    for (const auto& [own_epoch, own_batch] : next)
      EXPECT_GE(own_epoch, epoch + 1);
    EXPECT_EQ(next[1].first, epoch + 1);  // 70 / 3 is the most: this one decides
  }
}

TEST(Mixture, DoesNotDependOnWhatWasAskedBefore) {
  const auto walked = make_mixture({1, 2}, {9, 5});
  for (int64_t epoch = 0; epoch < 6; ++epoch)
    walked.batches_of_epoch(epoch);
  for (int64_t epoch = 5; epoch >= 0; --epoch) {
    const auto fresh = make_mixture({1, 2}, {9, 5});
    ASSERT_EQ(fresh.batches_of_epoch(epoch), walked.batches_of_epoch(epoch));
    for (int64_t i = 0; i < walked.batches_of_epoch(epoch); ++i) {
      EXPECT_EQ(fresh.turn(epoch, i).source, walked.turn(epoch, i).source);
      EXPECT_EQ(fresh.turn(epoch, i).batch, walked.turn(epoch, i).batch);
    }
  }
}

// Planning a large epoch takes half a second, in which the trainer asks where it stands.
TEST(Mixture, TellsOfAKnownEpochWhileTheNextOneIsPlanned) {
  std::promise<void> is_planned;
  std::promise<void> is_told;
  auto told = is_told.get_future();
  bool was_told = false;
  std::once_flag first;
  const Mixture mixture({1}, [&](int64_t, int64_t epoch) {
    if (epoch == 1) {
      std::call_once(first, [&] {
        is_planned.set_value();
        was_told = told.wait_for(std::chrono::seconds(5)) == std::future_status::ready;
      });
    }
    return int64_t{3};
  });
  EXPECT_EQ(mixture.batches_of_epoch(0), 3);
  const auto planner = std::async(std::launch::async, [&] { return mixture.turn(1, 2).epoch; });
  is_planned.get_future().wait();
  EXPECT_EQ(mixture.batches_of_epoch(0), 3);
  EXPECT_EQ(mixture.turn(0, 1).batch, 1);
  EXPECT_EQ(mixture.taken_before(0, 2), (std::vector<int64_t>{2}));
  is_told.set_value();
  planner.wait();
  EXPECT_TRUE(was_told);
}

TEST(Mixture, RefusesWeightsThatRepeatADatasetWithoutEnd) {
  testing::expect_error<ConfigError>(
      [&] {
        make_mixture({1000, 1}, {2, 10});
      },
      {"data.path", "5000 times"});
}

DataSettings with_path(const std::string& path) {
  DataSettings settings;
  settings.path = path;
  settings.max_sequences_per_batch = 2;
  return settings;
}

TEST(ListDatasets, ReadsAFolderAndLists) {
  const auto one = list_datasets(with_path("a, b"));
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one[0].path, "a, b");
  const auto two =
      list_datasets(with_path(R"([{"path": "a,b", "weight": 2}, {"weight": 0.5, "path": "c"}])"));
  ASSERT_EQ(two.size(), 2U);
  EXPECT_EQ(two[0].path, "a,b");
  EXPECT_EQ(two[0].weight, 2);
  EXPECT_EQ(two[1].weight, 0.5);
  EXPECT_EQ(list_datasets(with_path(R"(["a", {"path": "b"}])")).size(), 2U);
}

TEST(ListDatasets, RefusesWhatIsNoList) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  for (const std::string& text : std::vector<std::string>{
           deep, "[", "[]", "[3]", R"([{"weight": 2}])", R"([{"path": 3}])",
           R"([{"path": "a", "share": 2}])", R"([{"path": "a", "weight": 0}])",
           R"([{"path": "a", "weight": -1}])", R"([{"path": "a", "weight": "2"}])",
           R"([{"path": "a", "weight": 1e300}, {"path": "b", "weight": 1}])",
           R"([{"path": "a", "weight": 1e-300}, {"path": "b", "weight": 1}])",
           R"([{"path": "a", "weight": 1}, "b"])"})
    testing::expect_error<ConfigError>([&] { list_datasets(with_path(text)); }, {"data.path"});
}

struct MixedSource : ::testing::Test {
  TempFolder folder;
  const BlockRule rule{4, 199, 7.0};

  std::string write(const std::string& name, int64_t count, uint64_t seed) const {
    std::vector<TokenSequence> sequences;
    for (int64_t i = 0; i < count; ++i)
      sequences.push_back(make_sequence(10, 1, seed + static_cast<uint64_t>(i)));
    return testing::write_dataset_folder(folder, name, sequences).string();
  }
  BatchSource open(double first_weight) const {
    const std::string a = write("a", 12, 1);
    const std::string b = write("b", 4, 100);
    return BatchSource::open(
        with_path(
            "[{\"path\": \"" + a + "\", \"weight\": " + std::to_string(first_weight) +
            "}, {\"path\": \"" + b + "\", \"weight\": 1}]"),
        200, {});
  }
};

TEST_F(MixedSource, ReadsAllOfBothAndReportsTheShares) {
  auto source = open(2);
  EXPECT_EQ(source.report().read, 16);
  EXPECT_EQ(source.report().trained, 16);
  // 6 batches of a and 3 of b: b, which has 2, begins its second pass.
  EXPECT_EQ(source.batches_of_epoch(0), 9);
  std::multiset<std::pair<int64_t, int64_t>> seen;
  DataCursor cursor;
  for (int64_t i = 0; i < 9; ++i) {
    const auto batch = source.read(cursor, rule);
    EXPECT_EQ(batch.at, cursor);
    for (const int64_t number : batch.tokens.sequences)
      seen.emplace(batch.source, number);
    cursor = batch.next;
  }
  for (int64_t i = 0; i < 12; ++i)
    EXPECT_EQ(seen.count({0, i}), 1U) << i;
  for (int64_t i = 0; i < 4; ++i)
    EXPECT_GE(seen.count({1, i}), 1U) << i;
  const auto shares = source.shares(cursor);
  ASSERT_EQ(shares.size(), 2U);
  EXPECT_NEAR(shares[0].planned, 2.0 / 3, 1e-12);
  EXPECT_NEAR(shares[0].seen, 6.0 / 9, 1e-12);
  EXPECT_EQ(shares[1].batches, 3);
  EXPECT_NE(shares[1].path.find("/b"), std::string::npos);
}

TEST_F(MixedSource, GoesOnAtACursorAsIfItHadNotStopped) {
  auto unbroken = open(3);
  std::vector<std::pair<DataCursor, SourceBatch>> wanted;
  DataCursor cursor;
  for (int i = 0; i < 25; ++i) {
    auto batch = unbroken.read(cursor, rule);
    const auto next = batch.next;
    wanted.emplace_back(cursor, std::move(batch));
    cursor = next;
  }
  for (size_t i = 1; i < wanted.size(); i += 5) {
    auto resumed = open(3);
    const auto batch = resumed.read(wanted[i].first, rule);
    EXPECT_EQ(batch.source, wanted[i].second.source);
    EXPECT_EQ(batch.tokens.sequences, wanted[i].second.tokens.sequences);
    EXPECT_TRUE(torch::equal(batch.tokens.ids, wanted[i].second.tokens.ids));
    EXPECT_TRUE(torch::equal(batch.blocks.layout.anchors, wanted[i].second.blocks.layout.anchors));
  }
}

TEST_F(MixedSource, WithoutWeightsHasEachSequenceOncePerEpoch) {
  const std::string a = write("a", 12, 1);
  const std::string b = write("b", 4, 100);
  auto source = BatchSource::open(with_path("[\"" + a + "\", \"" + b + "\"]"), 200, {});
  EXPECT_EQ(source.batches_of_epoch(0), 8);
  std::set<std::pair<int64_t, int64_t>> seen;
  for (int64_t i = 0; i < 8; ++i) {
    const auto batch = source.read({0, i}, rule);
    for (const int64_t number : batch.tokens.sequences)
      EXPECT_TRUE(seen.emplace(batch.source, number).second);
  }
  EXPECT_EQ(seen.size(), 16U);
}

}  // namespace
}  // namespace draftsmith::data
