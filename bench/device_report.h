// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/types.h>

#include "draftsmith/base/stopwatch.h"
#include "draftsmith/ops/cuda/devices.h"

namespace draftsmith::bench {

inline const torch::Device kDevice(torch::kCUDA, 0);

struct Measured {
  double seconds;      // median of some runs, each of enough repeats to last 2 ms
  int64_t peak_bytes;  // beyond what was alive before
};

inline void wait_for_device() {
  c10::impl::VirtualGuardImpl(kDevice.type()).synchronizeDevice(kDevice.index());
}

inline Measured measure(const std::function<void()>& work, int runs = 5) {
  const auto time = [&](int repeats) {
    wait_for_device();
    const Stopwatch watch;
    for (int i = 0; i < repeats; ++i)
      work();
    wait_for_device();
    return watch.seconds();
  };
  ops::cuda::reset_device_peak(kDevice);
  const int64_t live = ops::cuda::device_bytes(kDevice).live;
  const double once = std::min(time(1), time(1));  // the first also loads kernels
  const int64_t peak = ops::cuda::device_bytes(kDevice).peak - live;
  const int repeats = std::clamp(static_cast<int>(2e-3 / once), 1, 100);
  std::vector<double> seconds;
  for (int i = 0; i < runs; ++i)
    seconds.push_back(time(repeats) / repeats);
  std::sort(seconds.begin(), seconds.end());
  return {seconds[seconds.size() / 2], peak};
}

inline torch::Tensor random_half(at::IntArrayRef shape, double scale = 1) {
  return torch::empty(shape, torch::TensorOptions(torch::kBFloat16).device(kDevice))
      .normal_(0, scale);
}

/// What a device reaches: a large bfloat16 product, and a copy.
struct Rates {
  double flops;  // a second
  double bytes;
};

/// A table's rows on the screen and in a file of JSON lines.
class Report {
 public:
  explicit Report(const char* path) : file_(std::fopen(path, "w")) {
    fmt::print(
        "| {:52} | {:>10} | {:>10} | {:>6} | {:>9} |\n", "what", "is", "floor", "ratio",
        "extra MiB");
    fmt::print("|---|---|---|---|---|\n");
  }
  ~Report() {
    if (file_ != nullptr) std::fclose(file_);
  }
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;
  bool is_open() const { return file_ != nullptr; }

  /// Milliseconds. `floor` in seconds; `must`: the ratio that it may reach, or 0 for none.
  void row(const std::string& name, const Measured& measured, double floor, double must = 0) {
    const double mib = static_cast<double>(measured.peak_bytes) / (1 << 20);
    write(name, "ms", 1e3 * measured.seconds, 1e3 * floor, mib, {0, must});
  }

  /// MiB that were planned and that were measured. `must`: how far they may be apart.
  void planned(const std::string& name, int64_t planned, int64_t measured, double must) {
    const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
    write(name, "mib", mib(planned), mib(measured), 0, {1 - must, 1 + must});
  }

  /// Something that must be.
  void check(const std::string& name, bool is_right) {
    write(name, "is", is_right ? 1 : 0, 1, 0, {1, 1});
  }

  int misses() const { return misses_; }

 private:
  struct Range {
    double from, to;  // to = 0: any
  };

  void write(
      const std::string& name,
      const char* unit,
      double value,
      double floor,
      double extra_mib,
      const Range& range) {
    const double ratio = value / floor;
    const bool is_missed = range.to > 0 && !(ratio >= range.from && ratio <= range.to);
    const auto complaint =
        is_missed ? fmt::format(" not from {} to {}", range.from, range.to) : std::string();
    fmt::print(
        "| {:52} | {:10.3f} | {:10.3f} | {:6.3f} | {:9.0f} |{}\n", name, value, floor, ratio,
        extra_mib, complaint);
    fmt::print(
        file_,
        "{{\"name\": \"{}\", \"{}\": {:.6f}, \"floor\": {:.6f}, \"ratio\": {:.4f}, "
        "\"must\": {}, \"extra_mib\": {:.1f}}}\n",
        name, unit, value, floor, ratio, range.to, extra_mib);
    std::fflush(stdout);
    std::fflush(file_);
    if (is_missed) ++misses_;
  }

  std::FILE* file_;
  int misses_ = 0;
};

/// A step of a drafter of the reference case: its time against its products, eager and replayed,
/// and its memory against the planner.
void run_step(Report& report, const Rates& rates, bool is_quick);

}  // namespace draftsmith::bench
