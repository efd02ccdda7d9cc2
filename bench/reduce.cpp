// SPDX-License-Identifier: Apache-2.0
// Gradients of 0.25 billion parameters summed over 4 ranks on this machine, in buckets as training
// does, beside one all-reduce of Gloo of the same bytes.
//   bench_reduce [PARAMETERS in millions = 250] [RANKS = 4] [ROUNDS = 5]
#include <fmt/format.h>

#include <cctype>
#include <cstdlib>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>

#include "draftsmith/pipeline/ranks.h"
#include "draftsmith/train/gradient_buckets.h"

#include "bench/measure.h"

namespace draftsmith {
namespace {

/// Shapes of a drafter: five layers of large matrices and small norms.
std::vector<torch::Tensor> make_parameters(int64_t count) {
  std::vector<torch::Tensor> parameters;
  const int64_t matrix = count / 36;  // 5 layers of 7, and fc
  const auto empty = [](int64_t size) { return torch::empty({size}, torch::kBFloat16); };
  parameters.push_back(empty(count - 35 * matrix));
  for (int i = 0; i < 35; ++i) {
    parameters.push_back(empty(matrix));
    parameters.push_back(empty(1024));
  }
  return parameters;
}

struct Times {
  std::vector<double> whole, buckets;
};

void run_rank(
    const pipeline::Meeting& meeting,
    int64_t rank,
    int64_t size,
    int64_t count,
    int rounds,
    Times& times) {
  at::set_num_threads(1);
  auto ranks = meeting.join_threads(rank, size);
  train::GradientBuckets buckets(make_parameters(count), ranks, false);
  int64_t elements = 0;
  for (const int64_t bucket : buckets.plan().sizes)
    elements += bucket;
  auto whole = torch::ones({elements});
  for (int round = 0; round < rounds + 1; ++round) {
    ranks.any(false);  // all begin together
    Stopwatch watch;
    ranks.start_all_reduce(whole).wait();
    const double whole_seconds = watch.seconds();
    ranks.any(false);
    watch.restart();
    buckets.reduce();
    const double bucket_seconds = watch.seconds();
    if (round == 0) continue;  // connections are made, pages are touched
    times.whole.push_back(whole_seconds);
    times.buckets.push_back(bucket_seconds);
  }
}

void run(int64_t count, int64_t size, int rounds) {
  pipeline::Meeting meeting(std::chrono::minutes(10));
  std::vector<Times> times(static_cast<size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (int64_t rank = 0; rank < size; ++rank)
      threads.emplace_back([&, rank] {
        run_rank(meeting, rank, size, count, rounds, times[static_cast<size_t>(rank)]);
      });
  }
  const double whole = bench::median(times[0].whole);
  const double buckets = bench::median(times[0].buckets);
  bench::print_header({"parameters", "ranks", "one all-reduce, s", "in buckets, s", "ratio"});
  bench::print_row(
      {fmt::format("{:.3f} billion", static_cast<double>(count) / 1e9), fmt::format("{}", size),
       fmt::format("{:.3f}", whole), fmt::format("{:.3f}", buckets),
       fmt::format("{:.3f}", buckets / whole)});
}

}  // namespace
}  // namespace draftsmith

int main(int argc, char** argv) {
  if (argc > 4 || (argc > 1 && !std::isdigit(argv[1][0]))) {
    fmt::print(stderr, "usage: bench_reduce [MILLIONS of parameters [RANKS [ROUNDS]]]\n");
    return 2;
  }
  const auto argument = [&](int index, int64_t fallback) {
    return argc > index ? std::atoll(argv[index]) : fallback;
  };
  draftsmith::run(
      argument(1, 250) * 1'000'000, argument(2, 4), static_cast<int>(argument(3, 5)));
}
