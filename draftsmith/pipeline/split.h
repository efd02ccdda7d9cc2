// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace draftsmith::pipeline {

/// How long one worker of each kind is at work on a batch, waiting not counted.
struct StageSeconds {
  double loader = 0;
  double target = 0;
  double drafter = 0;
};

/// How devices are shared between the two sides.
struct Split {
  int64_t targets = 1;
  int64_t drafters = 1;

  bool operator==(const Split&) const = default;
};

/// What the slowest side lets through: min(1 / loader, targets / target, drafters / drafter).
double batches_per_s(const StageSeconds& seconds, const Split& split);

/// The split of `devices` (at least 2) that lets most through; of equal ones the one with the most
/// drafters.
Split find_best_split(const StageSeconds& seconds, int64_t devices);

/// One sentence: which side was the bottleneck, and which split of as many devices would be better.
/// Workers that share one device take its time from each other: then no split is recommended.
std::string
describe_bottleneck(const StageSeconds& seconds, const Split& split, bool shares_device = false);

}  // namespace draftsmith::pipeline
