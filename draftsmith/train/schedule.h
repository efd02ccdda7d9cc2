// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace draftsmith::train {

/// The learning rate of a step, counted from 0. Warm-up is linear: lr (step + 1) / warmup_steps.
/// Then cosine to 0 at total_steps; constant; or wsd: constant, and linear to 0 over the last
/// fifth. A pure function, so a resumed run needs no state for it.
struct Schedule {
  std::string kind = "cosine";
  double peak = 0;
  int64_t warmup_steps = 0;
  int64_t total_steps = 1;

  double lr(int64_t step) const;
};

}  // namespace draftsmith::train
