// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "draftsmith/base/error.h"

namespace draftsmith::model {
namespace {

using formats::RopeSettings;

/// Long waves are stretched by `factor`, short ones kept, those between blended.
double scale_llama3(double frequency, const RopeSettings& rope) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const auto original = static_cast<double>(rope.original_max_position);
  if (wavelength < original / rope.high_freq_factor) return frequency;
  if (wavelength > original / rope.low_freq_factor) return frequency / rope.factor;
  const double share = (original / wavelength - rope.low_freq_factor) /
                       (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - share) * frequency / rope.factor + share * frequency;
}

/// The index whose wave turns `rotations` times within the original length.
double yarn_index(double rotations, const RopeSettings& rope, double head_dim) {
  const auto original = static_cast<double>(rope.original_max_position);
  return head_dim * std::log(original / (2 * std::numbers::pi * rotations)) /
         (2 * std::log(rope.theta));
}

double scale_yarn(double frequency, int64_t j, const RopeSettings& rope, int64_t head_dim) {
  const auto width = static_cast<double>(head_dim);
  const double low = std::max(std::floor(yarn_index(rope.beta_fast, rope, width)), 0.0);
  double high = std::min(std::ceil(yarn_index(rope.beta_slow, rope, width)), width - 1);
  if (low == high) high += 0.001;
  const double ramp = std::clamp((static_cast<double>(j) - low) / (high - low), 0.0, 1.0);
  return (1 - ramp) * frequency + ramp * frequency / rope.factor;
}

}  // namespace

Rope::Rope(const RopeSettings& settings, int64_t head_dim) {
  DS_CHECK(head_dim % 2 == 0);
  inverse_frequencies_ = torch::empty({head_dim / 2}, torch::kFloat);
  for (int64_t j = 0; j < head_dim / 2; ++j) {
    double frequency =
        std::pow(settings.theta, -2.0 * static_cast<double>(j) / static_cast<double>(head_dim));
    if (settings.type == "linear") frequency /= settings.factor;
    if (settings.type == "llama3") frequency = scale_llama3(frequency, settings);
    if (settings.type == "yarn") frequency = scale_yarn(frequency, j, settings, head_dim);
    inverse_frequencies_.data_ptr<float>()[j] = static_cast<float>(frequency);
  }
  if (settings.type == "yarn")
    attention_factor_ = settings.attention_factor.value_or(0.1 * std::log(settings.factor) + 1);
}

}  // namespace draftsmith::model
