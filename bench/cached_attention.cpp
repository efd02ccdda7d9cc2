// SPDX-License-Identifier: Apache-2.0
// One layer's attention of T new tokens to some 300 cached ones, with the heads of the demo's model.
#include "draftsmith/ops/cached_attention.h"

#include <benchmark/benchmark.h>

#include <torch/types.h>

namespace draftsmith {
namespace {

void attend(benchmark::State& state, torch::ScalarType dtype) {
  const int64_t T = state.range(0), H = 9, G = 3, E = 64, length = 300;
  torch::manual_seed(1);
  const auto query = torch::randn({1, T, H, E}).to(dtype);
  const auto key = torch::randn({1, 512, G, E}).to(dtype);
  const auto value = torch::randn({1, 512, G, E}).to(dtype);
  for (auto _ : state)
    benchmark::DoNotOptimize(ops::cached_attention(query, key, value, {length}));
  state.counters["ns/score"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * 1e-9 * static_cast<double>(T * H * length),
      benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

BENCHMARK_CAPTURE(attend, float32, torch::kFloat)
    ->Arg(1)
    ->Arg(4)
    ->Arg(9)
    ->Arg(17)
    ->Arg(33)
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

}  // namespace
}  // namespace draftsmith

BENCHMARK_MAIN();
