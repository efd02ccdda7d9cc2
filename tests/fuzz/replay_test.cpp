// SPDX-License-Identifier: Apache-2.0
// The fuzzers' seeds, and the inputs that once broke something, through the same readers.
#include <gtest/gtest.h>

#include "draftsmith/base/atomic_file.h"

#include "fuzz/scratch.h"
#include "fuzz/targets.h"

namespace draftsmith::fuzz {
namespace {

namespace fs = std::filesystem;

struct Kind {
  const char* name;
  Target target;
};

class Replay : public ::testing::TestWithParam<Kind> {
 protected:
  void TearDown() override { fs::remove_all(scratch()); }
};

TEST_P(Replay, EndsWithAResultOrARefusal) {
  const auto feed = [&](const std::string& bytes) {
    fs::create_directories(scratch());
    GetParam().target(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  };
  int count = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(DS_FUZZ_SEEDS) / GetParam().name)) {
    SCOPED_TRACE(entry.path().string());
    const std::string bytes = read_file(entry.path());
    EXPECT_NO_THROW(feed(bytes));
    EXPECT_NO_THROW(feed(bytes.substr(0, bytes.size() / 2)));
    ++count;
  }
  EXPECT_GT(count, 0);
  EXPECT_NO_THROW(feed(""));
}

INSTANTIATE_TEST_SUITE_P(
    Files,
    Replay,
    ::testing::Values(
        Kind{"checkpoint", read_checkpoint},
        Kind{"safetensors", read_safetensors},
        Kind{"config", read_config},
        Kind{"dataset", read_dataset},
        Kind{"features", read_features},
        Kind{"settings", read_settings},
        Kind{"tokenizer", read_tokenizer}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace draftsmith::fuzz
