// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/formats/model_fingerprint.h"

#include <gtest/gtest.h>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"
#include "draftsmith/formats/safetensors.h"

#include "tests/support/reference.h"
#include "tests/support/temp_folder.h"

namespace draftsmith::formats {
namespace {

using testing::TempFolder;

/// A model of one tensor with a million numbers; fingerprinted, then gone.
std::string fingerprint(const torch::Tensor& tensor, const std::string& config = "{}") {
  const TempFolder folder;
  folder.write("config.json", config);
  write_safetensors(folder / "model.safetensors", {{"x", tensor}});
  return fingerprint_model(folder.path());
}

TEST(ModelFingerprint, IsThatOfTheContentWhateverThePath) {
  const auto tensor = testing::random_normal({1000, 100}, 1);
  EXPECT_EQ(fingerprint(tensor), fingerprint(tensor));
}

TEST(ModelFingerprint, ChangesWithConfigShapeAndWeights) {
  const auto tensor = testing::random_normal({1000, 100}, 1);
  const std::string before = fingerprint(tensor);
  EXPECT_NE(fingerprint(tensor, "{ }"), before);
  EXPECT_NE(fingerprint(tensor.view({100, 1000})), before);
  EXPECT_NE(fingerprint(tensor * 1.001), before);
  EXPECT_NE(fingerprint(testing::random_normal({1, 2}, 1)), before);
  auto changed = tensor.clone();
  changed[999][99] += 1;  // the very last number
  EXPECT_NE(fingerprint(changed), before);
}

TEST(ModelFingerprint, NamesAMissingConfig) {
  const TempFolder folder;
  testing::expect_error<DataError>([&] { fingerprint_model(folder.path()); }, {"config.json"});
}

}  // namespace
}  // namespace draftsmith::formats
