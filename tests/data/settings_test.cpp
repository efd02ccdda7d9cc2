// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/settings.h"

#include <gtest/gtest.h>

#include "draftsmith/base/error.h"

#include "tests/base/expect_error.h"

namespace draftsmith::data {
namespace {

TEST(DataSettings, HaveTheKeysAndDefaultsOfTheInterface) {
  DataSettings settings;
  FieldList fields;
  add_fields(fields, settings);
  const std::vector<std::pair<const char*, const char*>> wanted = {
      {"data.path", ""},
      {"data.split", ""},
      {"data.batching", "bucket"},
      {"data.overlong", "cut"},
      {"data.max_length", "8192"},
      {"data.tokens_per_batch", "49152"},
      {"data.num_buckets", "6"},
      {"data.max_sequences_per_batch", "64"},
      {"data.num_anchors", "1024"},
      {"data.anchors_per_sequence", "0"},
      {"data.seed", "0"},
      {"data.held_out", "0"}};
  for (const auto& [key, value] : wanted) {
    ASSERT_NE(fields.find(key), nullptr) << key;
    EXPECT_EQ(fields.find(key)->print(), value) << key;
  }
}

TEST(DataSettings, RefuseNumbersThatMakeNoBatch) {
  DataSettings settings;
  FieldList fields;
  add_fields(fields, settings);
  for (const char* key :
       {"data.max_length", "data.tokens_per_batch", "data.num_buckets",
        "data.max_sequences_per_batch", "data.num_anchors"}) {
    testing::expect_error<ConfigError>([&] { fields.get(key, "").parse("0"); }, {key, "'0'"});
  }
  for (const char* key : {"data.anchors_per_sequence", "data.seed"}) {
    fields.get(key, "").parse("0");
    testing::expect_error<ConfigError>([&] { fields.get(key, "").parse("-1"); }, {key, "'-1'"});
  }
}

}  // namespace
}  // namespace draftsmith::data
