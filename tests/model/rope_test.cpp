// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "draftsmith/formats/json.h"

#include "tests/support/golden.h"

namespace draftsmith::model {
namespace {

formats::RopeSettings parse(const formats::Json& json) {
  formats::RopeSettings settings;
  settings.type = json.at("rope_type").get<std::string>();
  settings.theta = json.at("rope_theta").get<double>();
  settings.factor = json.at("factor").get<double>();
  settings.low_freq_factor = json.value("low_freq_factor", 1.0);
  settings.high_freq_factor = json.value("high_freq_factor", 4.0);
  settings.original_max_position = json.value("original_max_position_embeddings", int64_t{0});
  settings.beta_fast = json.value("beta_fast", 32.0);
  settings.beta_slow = json.value("beta_slow", 1.0);
  if (json.contains("attention_factor"))
    settings.attention_factor = json.at("attention_factor").get<double>();
  return settings;
}

TEST(Rope, EqualsTheReferenceTables) {
  const auto file = testing::golden("rope/inv_freq.safetensors");
  const auto settings_file = formats::read_json_file(testing::fixture("rope/settings.json"));
  int64_t compared = 0;
  for (const auto& [name, item] : settings_file.items()) {
    SCOPED_TRACE(name);
    const auto settings = parse(item.at("rope_parameters"));
    const Rope rope(settings, item.at("head_dim").get<int64_t>());
    const auto expected = file.tensor(name).to(torch::kDouble);
    const auto error = (rope.inverse_frequencies().to(torch::kDouble) / expected - 1).abs();
    // The reference raises theta to an exponent that was rounded to float32, which moves the
    // result by ln(theta) half-steps; some more roundings follow.
    EXPECT_LE(error.max().item<double>(), (std::log(settings.theta) + 4) * std::exp2(-24));
    EXPECT_NEAR(rope.attention_factor(), item.at("attention_factor").get<double>(), 1e-12);
    ++compared;
  }
  EXPECT_EQ(compared, 6);
}

TEST(Rope, UsesThePlainPowersWithoutScaling) {
  formats::RopeSettings settings;
  settings.theta = 10000;
  const Rope rope(settings, 8);
  const auto expected = torch::tensor({1.0F, 0.1F, 0.01F, 0.001F});
  EXPECT_TRUE(rope.inverse_frequencies().equal(expected));
  EXPECT_EQ(rope.attention_factor(), 1);
}

TEST(Rope, StaysInFloat32WhateverTheActivations) {
  const Rope rope({}, 8);
  EXPECT_EQ(rope.inverse_frequencies().scalar_type(), torch::kFloat);
  const auto angles = rope.angles(torch::tensor({int64_t{100}}), torch::kBFloat16);
  EXPECT_EQ(angles.cos.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(
      angles.cos[0][0].item<float>(),
      torch::tensor(std::cos(100.0F)).to(torch::kBFloat16).item<float>());
}

}  // namespace
}  // namespace draftsmith::model
