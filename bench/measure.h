// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <torch/types.h>

#include "draftsmith/base/stopwatch.h"
#include "draftsmith/memory/host_allocator.h"

namespace draftsmith::bench {

/// The words of the command line, all of which must be among `known`; any other one, --help too, prints
/// `usage` and ends the program with 2.
inline std::set<std::string>
read_flags(int argc, char** argv, const std::set<std::string>& known, const char* usage) {
  const std::set<std::string> given(argv + 1, argv + argc);
  if (std::includes(known.begin(), known.end(), given.begin(), given.end())) return given;
  fmt::print(stderr, "usage: {}\n", usage);
  std::exit(2);
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// What several ways of doing the same took, run in turn so that the machine's moods hit all alike.
struct Contender {
  std::string name;
  std::function<void()> run;
  std::vector<double> seconds = {};
  int64_t extra_bytes = 0;  // peak of tensors beyond those alive before

  double time() const { return median(seconds); }
};

inline void measure(std::vector<Contender>& contenders, int repeats) {
  for (int i = 0; i < repeats; ++i) {
    for (auto& contender : contenders) {
      memory::reset_host_peak();
      const int64_t before = memory::host_bytes().live;
      const Stopwatch watch;
      contender.run();
      contender.seconds.push_back(watch.seconds());
      contender.extra_bytes = memory::host_bytes().peak - before;
    }
  }
}

/// The peak of this process's resident memory counts from here.
inline void reset_resident_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

/// A value in bytes of /proc/self/status; pages of mapped files are included.
inline int64_t read_status_bytes(const std::string& wanted) {
  std::ifstream status("/proc/self/status");
  std::string key;
  while (status >> key && key != wanted + ":") status.ignore(4096, '\n');
  int64_t kibibytes = 0;
  status >> kibibytes;
  return kibibytes * 1024;
}
/// Resident memory now, and its peak.
inline int64_t resident_bytes() { return read_status_bytes("VmRSS"); }
inline int64_t resident_peak_bytes() { return read_status_bytes("VmHWM"); }

/// Rows of a Markdown table, printed as they come.
inline void print_row(const std::vector<std::string>& cells) {
  fmt::print("| {} |\n", fmt::join(cells, " | "));
  std::fflush(stdout);
}
inline void print_header(const std::vector<std::string>& cells) {
  print_row(cells);
  print_row(std::vector<std::string>(cells.size(), "---"));
}

/// Values of about N(0, scale^2) in bfloat16, quickly made and the same in every run.
inline torch::Tensor random_bfloat16(at::IntArrayRef shape, double scale, uint64_t seed) {
  const auto generator = at::detail::createCPUGenerator(seed);
  return torch::empty(shape, torch::kBFloat16).normal_(0, scale, generator);
}

/// FLOP/s of a large bfloat16 product: what floors are stated in.
inline double measure_gemm_rate() {
  const auto x = random_bfloat16({2048, 1024}, 1, 1);
  const auto weight = random_bfloat16({3072, 1024}, 1, 2);
  std::vector<Contender> product = {{"", [&] { torch::mm(x, weight.t()); }}};
  measure(product, 15);
  return 2.0 * 2048 * 1024 * 3072 / product[0].time();
}

}  // namespace draftsmith::bench
