// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace draftsmith::train {
namespace {

constexpr double kDecayShare = 0.2;  // of all steps, in wsd

}  // namespace

double Schedule::lr(int64_t step) const {
  if (step < warmup_steps)
    return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  if (kind == "constant") return peak;
  const auto total = static_cast<double>(total_steps);
  const double start = kind == "wsd"
                           ? std::max(static_cast<double>(warmup_steps), total * (1 - kDecayShare))
                           : static_cast<double>(warmup_steps);
  const double progress =
      std::clamp((static_cast<double>(step) - start) / std::max(total - start, 1.0), 0.0, 1.0);
  if (kind == "wsd") return peak * (1 - progress);
  return peak * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace draftsmith::train
