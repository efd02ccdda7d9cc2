// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/split.h"

#include <fmt/format.h>

#include <algorithm>

#include "draftsmith/base/error.h"

namespace draftsmith::pipeline {
namespace {

/// Less than this is not worth another run, nor sure from measured times.
constexpr double kGainWorthNaming = 1.02;
constexpr double kNoTime = 1e-12;

double rate(int64_t workers, double seconds) {
  return static_cast<double>(workers) / std::max(seconds, kNoTime);
}

}  // namespace

double batches_per_s(const StageSeconds& seconds, const Split& split) {
  return std::min(
      {rate(1, seconds.loader), rate(split.targets, seconds.target),
       rate(split.drafters, seconds.drafter)});
}

Split find_best_split(const StageSeconds& seconds, int64_t devices) {
  DS_CHECK(devices >= 2);
  Split best{1, devices - 1};
  for (Split split{2, devices - 2}; split.drafters > 0; ++split.targets, --split.drafters)
    if (batches_per_s(seconds, split) > batches_per_s(seconds, best)) best = split;
  return best;
}

std::string
describe_bottleneck(const StageSeconds& seconds, const Split& split, bool shares_device) {
  const double now = batches_per_s(seconds, split);
  const double targets = rate(split.targets, seconds.target);
  const double drafters = rate(split.drafters, seconds.drafter);
  std::string side = targets < drafters ? "the targets" : "the drafters";
  if (rate(1, seconds.loader) <= now) side = "the loader";
  const std::string measured = fmt::format(
      "{} of {} + {} workers were the bottleneck at {:.3g} batches/s (a batch took {:.3g} s to "
      "load, {:.3g} s in the target, {:.3g} s in the drafter)",
      side, split.targets, split.drafters, now, seconds.loader, seconds.target, seconds.drafter);
  if (shares_device) return measured + "; they share one device, so no split was compared";
  const Split best = find_best_split(seconds, split.targets + split.drafters);
  const double gain = batches_per_s(seconds, best) / now;
  if (side == "the loader") return measured + "; no split of the devices changes that";
  if (gain < kGainWorthNaming)
    return fmt::format(
        "{}; no other split of {} workers is better", measured, split.targets + split.drafters);
  return fmt::format(
      "{}; {} + {} would give {:.3g} batches/s, {:.0f} % more", measured, best.targets,
      best.drafters, now * gain, 100 * (gain - 1));
}

}  // namespace draftsmith::pipeline
