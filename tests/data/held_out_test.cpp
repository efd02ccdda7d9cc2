// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "draftsmith/base/error.h"
#include "draftsmith/data/batch_source.h"

#include "tests/base/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_models.h"

namespace draftsmith::data {
namespace {

using testing::TempFolder;

constexpr int64_t kCount = 1000;

struct HeldOut : ::testing::Test {
  TempFolder folder;
  std::filesystem::path path;

  HeldOut() {
    std::vector<TokenSequence> sequences;
    for (int64_t i = 0; i < kCount; ++i)
      sequences.push_back(testing::make_sequence(4, 0, static_cast<uint64_t>(i)));
    path = testing::write_dataset_folder(folder, "dataset", sequences);
  }

  /// Numbers of all sequences of one epoch, ascending.
  std::vector<int64_t> list(double share, int64_t seed, Part part) const {
    DataSettings settings;
    settings.held_out = share;
    settings.seed = seed;
    BatchSource source(TokenDataset::open(path, ""), settings, 200, part);
    std::vector<int64_t> numbers;
    for (int64_t i = 0; i < source.batches_of_epoch(0); ++i) {
      const auto batch = source.read({0, i}, {4, 199, 7.0}).tokens.sequences;
      numbers.insert(numbers.end(), batch.begin(), batch.end());
    }
    std::sort(numbers.begin(), numbers.end());
    const auto& report = source.report();
    EXPECT_EQ(report.trained, static_cast<int64_t>(numbers.size()));
    EXPECT_EQ(report.trained + report.other_part, kCount);
    return numbers;
  }
};

TEST_F(HeldOut, AndTheRestAreAllSequencesOnce) {
  const auto trained = list(0.2, 3, Part::kTrained);
  const auto held_out = list(0.2, 3, Part::kHeldOut);
  // Binomial: mean 200, standard deviation 12.6.
  EXPECT_NEAR(static_cast<double>(held_out.size()), 200, 60);
  std::vector<int64_t> all;
  std::merge(
      trained.begin(), trained.end(), held_out.begin(), held_out.end(), std::back_inserter(all));
  for (int64_t i = 0; i < kCount; ++i)
    ASSERT_EQ(all.at(static_cast<size_t>(i)), i);
}

TEST_F(HeldOut, FollowFromTheSeed) {
  EXPECT_EQ(list(0.2, 3, Part::kHeldOut), list(0.2, 3, Part::kHeldOut));
  EXPECT_NE(list(0.2, 3, Part::kHeldOut), list(0.2, 4, Part::kHeldOut));
}

TEST_F(HeldOut, AreNoneWithoutAShare) {
  EXPECT_EQ(list(0, 3, Part::kTrained).size(), static_cast<size_t>(kCount));
  testing::expect_error<DataError>([&] { list(0, 3, Part::kHeldOut); }, {"1000 not held out"});
}

}  // namespace
}  // namespace draftsmith::data
