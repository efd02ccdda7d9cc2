// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/dataset_fingerprint.h"

#include <gtest/gtest.h>

#include "tests/support/temp_folder.h"
#include "tests/support/tiny_models.h"

namespace draftsmith::data {
namespace {

using testing::TempFolder;

std::vector<TokenSequence> make_sequences(int64_t count) {
  std::vector<TokenSequence> sequences;
  for (int64_t i = 0; i < count; ++i)
    sequences.push_back(testing::make_sequence(5, 2, static_cast<uint64_t>(i)));
  return sequences;
}

std::string fingerprint(const std::vector<TokenSequence>& sequences, const char* name) {
  const TempFolder folder;
  return fingerprint_dataset(
      TokenDataset::open(testing::write_dataset_folder(folder, name, sequences), ""));
}

TEST(DatasetFingerprint, IsThatOfTheContentWhateverThePath) {
  const auto sequences = make_sequences(20);
  EXPECT_EQ(fingerprint(sequences, "one"), fingerprint(sequences, "other"));
  EXPECT_EQ(fingerprint(sequences, "one").rfind("20 sequences, ", 0), 0U);
  EXPECT_EQ(fingerprint(make_sequences(1), "one").rfind("1 sequences, ", 0), 0U);
}

TEST(DatasetFingerprint, ChangesWithATokenAMaskAnOrderAndACount) {
  const auto sequences = make_sequences(20);
  const std::string before = fingerprint(sequences, "one");
  auto changed = sequences;
  changed[19].ids[0] ^= 1;
  EXPECT_NE(fingerprint(changed, "one"), before);
  changed = sequences;
  changed[7].mask[0] ^= 1;
  EXPECT_NE(fingerprint(changed, "one"), before);
  changed = sequences;
  std::swap(changed[3], changed[4]);
  EXPECT_NE(fingerprint(changed, "one"), before);
  EXPECT_NE(fingerprint(make_sequences(200), "one"), fingerprint(make_sequences(201), "one"));
}

}  // namespace
}  // namespace draftsmith::data
