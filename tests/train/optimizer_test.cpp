// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "draftsmith/base/error.h"
#include "draftsmith/ops/split_float.h"

#include "tests/support/golden.h"
#include "tests/support/reference.h"
#include "tests/support/temp_folder.h"

namespace draftsmith::train {
namespace {

using testing::max_difference;
using testing::random_normal;
using torch::Tensor;

Tensor find_state(const AdamW& optimizer, const std::string& name) {
  for (const auto& [key, tensor] : optimizer.state())
    if (key == name) return tensor;
  return {};
}

void apply(AdamW& optimizer, const Tensor& gradient, double lr) {
  optimizer.accumulate({gradient});
  optimizer.step(lr, 1, optimizer.gradient_norm(1));
}

TEST(AdamW, KeepsUpdatesBelowTheSpacingOfBfloat16) {
  // F18 (a): a faulty trainer stays at 1.
  const auto weight = torch::ones({1}, torch::kBFloat16);
  AdamW optimizer({{"x", weight}}, {.beta1 = 0.9, .beta2 = 0.999, .clip_norm = 0});
  for (int i = 0; i < 100; ++i)
    apply(optimizer, torch::ones({1}, torch::kBFloat16), 1e-3);
  EXPECT_NEAR(find_state(optimizer, "master.x").item<double>(), 0.9, 1e-4);
  EXPECT_EQ(weight.item<double>(), 0.8984375);
}

TEST(AdamW, SumsGradientsInFloat32) {
  // F18 (b): a sum in bfloat16 sticks at 256.
  const auto weight = torch::ones({1}, torch::kBFloat16);
  AdamW optimizer({{"x", weight}}, {.clip_norm = 0});
  for (int i = 0; i < 512; ++i)
    optimizer.accumulate({torch::ones({1}, torch::kBFloat16)});
  EXPECT_EQ(optimizer.gradient_norm(1), 512);
  EXPECT_EQ(optimizer.gradient_norm(0.5), 256);
}

TEST(AdamW, DecaysBfloat16WeightsThroughTheirMasters) {
  // F18 (c).
  const auto weight = torch::ones({1}, torch::kBFloat16);
  AdamW optimizer(
      {{"x", weight}}, {.beta1 = 0.9, .beta2 = 0.999, .weight_decay = 0.01, .clip_norm = 0});
  for (int i = 0; i < 1000; ++i)
    apply(optimizer, torch::zeros({1}), 6e-4);
  // (1 - 6e-6)^1000; each of the 1000 products rounds by at most half a float32 step.
  const double exact = std::pow(1 - 6e-6, 1000);
  EXPECT_NEAR(exact, 0.9940, 5e-5);
  EXPECT_NEAR(find_state(optimizer, "master.x").item<double>(), exact, 1000 * std::exp2(-25));
  EXPECT_EQ(weight.item<double>(), 0.9921875);
}

TEST(AdamW, RoundsWeightsFromTheirMastersAfterEveryStep) {
  const auto weight = random_normal({50}, 1).to(torch::kBFloat16);
  AdamW optimizer({{"x", weight}}, {});
  EXPECT_TRUE(optimizer.has_masters());
  for (uint64_t i = 0; i < 5; ++i) {
    apply(optimizer, random_normal({50}, i), 1e-3);
    EXPECT_TRUE(weight.equal(find_state(optimizer, "master.x").to(torch::kBFloat16)));
  }
}

/// Weights of more than one part, enough for numbers half-way between two of bfloat16.
Tensor many_weights() { return random_normal({(int64_t{1} << 20) + 37}, 1).to(torch::kBFloat16); }

Tensor full_master(const AdamW& optimizer, const Tensor& weight) {
  const auto low = find_state(optimizer, "master_low.x");
  return low.defined() ? ops::join_float(weight, low) : find_state(optimizer, "master.x");
}

TEST(AdamW, HasTheSameNumbersInSplitMastersBitForBit) {
  const auto weight = many_weights(), split_weight = many_weights();
  AdamW plain({{"x", weight}}, {.weight_decay = 0.1});
  AdamW split({{"x", split_weight}}, {.weight_decay = 0.1, .splits_masters = true});
  EXPECT_TRUE(split.has_masters());
  for (uint64_t i = 0; i < 3; ++i) {
    const auto gradient = random_normal(weight.sizes().vec(), 100 + i).to(torch::kBFloat16);
    apply(plain, gradient, 1e-3);
    apply(split, gradient, 1e-3);
    ASSERT_TRUE(split_weight.equal(weight)) << i;
    ASSERT_TRUE(full_master(split, split_weight).equal(find_state(plain, "master.x"))) << i;
  }
  EXPECT_EQ(find_state(split, "master_low.x").scalar_type(), torch::kShort);
  EXPECT_FALSE(weight.equal(many_weights()));
  // Some of the masters must have been half-way, or the rounding of halves was not tried.
  const auto bits = find_state(plain, "master.x").view(torch::kInt);
  EXPECT_GT(bits.bitwise_and(0xffff).eq(0x8000).sum().item<int64_t>(), 0);
}

TEST(AdamW, ReadsStatesOfBothKindsOfMasters) {
  for (const bool was_split : {false, true}) {
    for (const bool splits : {false, true}) {
      const auto weight = random_normal({50}, 1).to(torch::kBFloat16);
      AdamW first({{"x", weight}}, {.splits_masters = was_split});
      for (uint64_t i = 0; i < 4; ++i)
        apply(first, random_normal({50}, i), 1e-2);
      const testing::TempFolder folder;
      formats::write_safetensors(folder / "state", first.state());
      const auto resumed = weight.clone();  // a checkpoint's weights are read first
      AdamW second({{"x", resumed}}, {.splits_masters = splits});
      second.load_state(formats::SafetensorsReader::open_file(folder / "state"), 4);
      EXPECT_TRUE(full_master(second, resumed).equal(full_master(first, weight)));
      apply(first, random_normal({50}, 9), 1e-2);
      apply(second, random_normal({50}, 9), 1e-2);
      EXPECT_TRUE(resumed.equal(weight));
      EXPECT_TRUE(full_master(second, resumed).equal(full_master(first, weight)));
    }
  }
}

TEST(AdamW, ReadsStatesWhoseNumbersAreStoredWider) {
  for (const bool was_split : {false, true}) {
    for (const bool splits : {false, true}) {
      const auto weight = random_normal({50}, 1).to(torch::kBFloat16);
      AdamW first({{"x", weight}}, {.splits_masters = was_split});
      apply(first, random_normal({50}, 2), 1e-2);
      auto state = first.state();
      for (auto& [name, tensor] : state)
        tensor = tensor.to(torch::kDouble);
      const testing::TempFolder folder;
      formats::write_safetensors(folder / "state", state);
      const auto resumed = weight.clone();
      AdamW second({{"x", resumed}}, {.splits_masters = splits});
      second.load_state(formats::SafetensorsReader::open_file(folder / "state"), 1);
      EXPECT_TRUE(full_master(second, resumed).equal(full_master(first, weight)));
    }
  }
}

TEST(AdamW, EqualsTheFormulaInFloat64) {
  const AdamWSettings settings{.beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1, .clip_norm = 0};
  const auto weight = random_normal({40}, 1).to(torch::kFloat);
  AdamW optimizer({{"x", weight}}, settings);
  EXPECT_FALSE(optimizer.has_masters());
  auto exact = weight.to(torch::kDouble).clone();
  auto first = torch::zeros_like(exact);
  auto second = torch::zeros_like(exact);
  for (int t = 1; t <= 20; ++t) {
    const auto gradient = random_normal({40}, static_cast<uint64_t>(100 + t)).to(torch::kFloat);
    const double lr = 1e-2 / t;
    const double scale = 0.25;
    optimizer.accumulate({gradient});
    optimizer.step(lr, scale, optimizer.gradient_norm(scale));
    const auto g = gradient.to(torch::kDouble) * scale;
    exact *= 1 - lr * settings.weight_decay;
    first = settings.beta1 * first + (1 - settings.beta1) * g;
    second = settings.beta2 * second + (1 - settings.beta2) * g * g;
    const auto mean = first / (1 - std::pow(settings.beta1, t));
    const auto size = (second / (1 - std::pow(settings.beta2, t))).sqrt();
    exact -= lr * mean / (size + settings.eps);
  }
  EXPECT_EQ(optimizer.num_steps(), 20);
  // 20 steps of a few roundings each, of values below 4.
  EXPECT_LE(max_difference(weight, exact), 20 * 4 * std::exp2(-23));
  EXPECT_LE(max_difference(find_state(optimizer, "exp_avg.x"), first), 1e-6);
  EXPECT_LE(max_difference(find_state(optimizer, "exp_avg_sq.x"), second), 1e-6);
}

TEST(AdamW, ClipsTheNormOfAllGradientsTogether) {
  const auto left = torch::zeros({1});
  const auto right = torch::zeros({1});
  AdamW optimizer({{"left", left}, {"right", right}}, {.beta1 = 0.5, .clip_norm = 1});
  optimizer.accumulate({torch::full({1}, 6.0F), torch::full({1}, 8.0F)});
  EXPECT_DOUBLE_EQ(optimizer.gradient_norm(0.5), 5);
  optimizer.step(1e-3, 0.5, optimizer.gradient_norm(0.5));
  // Clipped to norm 1 with 1e-6 in the denominator, then half of it enters the moment.
  EXPECT_NEAR(find_state(optimizer, "exp_avg.left").item<double>(), 0.5 * 0.6, 1e-6);
  EXPECT_NEAR(find_state(optimizer, "exp_avg.right").item<double>(), 0.5 * 0.8, 1e-6);
}

TEST(AdamW, LeavesGradientsBelowTheClipNormAlone) {
  AdamW optimizer({{"x", torch::zeros({1})}}, {.beta1 = 0.5, .clip_norm = 1});
  apply(optimizer, torch::full({1}, 0.25F), 1e-3);
  EXPECT_FLOAT_EQ(find_state(optimizer, "exp_avg.x").item<float>(), 0.125F);
}

TEST(AdamW, TakesUndefinedGradientsAsZeroAndForgetsWhatWasApplied) {
  const auto weight = torch::ones({2});
  AdamW optimizer({{"x", weight}}, {});
  optimizer.accumulate({Tensor()});
  EXPECT_EQ(optimizer.gradient_norm(1), 0);
  optimizer.accumulate({torch::ones({2})});
  optimizer.clear_gradients();
  EXPECT_EQ(optimizer.gradient_norm(1), 0);
  apply(optimizer, torch::ones({2}), 1e-3);
  EXPECT_EQ(optimizer.gradient_norm(1), 0);
}

TEST(AdamW, GoesOnFromASavedStateBitForBit) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    const auto start = random_normal({30}, 1).to(dtype);
    const auto unbroken = start.clone();
    AdamW first({{"x", unbroken}}, {});
    for (uint64_t i = 0; i < 4; ++i)
      apply(first, random_normal({30}, i), 1e-2);
    const testing::TempFolder folder;
    formats::write_safetensors(folder / "state", first.state());
    const auto resumed = unbroken.clone();
    AdamW second({{"x", resumed}}, {});
    second.load_state(formats::SafetensorsReader::open_file(folder / "state"), first.num_steps());
    for (uint64_t i = 4; i < 8; ++i) {
      apply(first, random_normal({30}, i), 1e-2);
      apply(second, random_normal({30}, i), 1e-2);
    }
    EXPECT_TRUE(resumed.equal(unbroken));
    EXPECT_FALSE(resumed.equal(start));
  }
}

TEST(AdamW, RefusesAStateThatDoesNotFit) {
  const testing::TempFolder folder;
  formats::write_safetensors(folder / "state", {{"exp_avg.x", torch::zeros({2})}});
  const auto reader = formats::SafetensorsReader::open_file(folder / "state");
  AdamW missing({{"x", torch::zeros({2})}}, {});
  testing::expect_error<DataError>([&] { missing.load_state(reader, 1); }, {"exp_avg_sq.x"});
  AdamW larger({{"x", torch::zeros({3})}}, {});
  testing::expect_error<DataError>([&] { larger.load_state(reader, 1); }, {"exp_avg.x", "3"});
}

}  // namespace
}  // namespace draftsmith::train
