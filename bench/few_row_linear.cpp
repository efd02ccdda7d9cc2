// SPDX-License-Identifier: Apache-2.0
// Few rows by the head of the demo's model: the kernel that gives a row the same bits whatever
// stands beside it, and the library's matrix product. Decides ops::most_few_rows and
// most_single_tokens.
#include <benchmark/benchmark.h>

#include <torch/types.h>

#include "draftsmith/ops/kernels.h"
#include "draftsmith/ops/storage.h"

namespace draftsmith {
namespace {

constexpr int64_t kIn = 576;
constexpr int64_t kOut = 49152;

struct Case {
  torch::Tensor x, weight, out;

  Case(int64_t rows, torch::ScalarType dtype)
      : x(torch::ones({rows, kIn}, dtype)),
        weight(torch::ones({kOut, kIn}, dtype)),
        out(torch::empty({rows, kOut}, dtype)) {}
};

void report_rates(benchmark::State& state, const Case& c) {
  const auto rounds = static_cast<double>(state.iterations());
  state.counters["GFLOP/s"] = benchmark::Counter(
      rounds * 2e-9 * static_cast<double>(state.range(0) * kIn * kOut),
      benchmark::Counter::kIsRate);
  state.counters["GB/s"] = benchmark::Counter(
      rounds * 1e-9 * static_cast<double>(c.weight.nbytes()), benchmark::Counter::kIsRate);
}

void run_kernel(benchmark::State& state, torch::ScalarType dtype) {
  const Case c(state.range(0), dtype);
  for (auto _ : state)
    ops::compute_few_row_linear(
        {.storage = ops::storage_of(c.x),
         .x = c.x.const_data_ptr(),
         .weight = c.weight.const_data_ptr(),
         .rows = state.range(0),
         .in = kIn,
         .out_features = kOut,
         .out = c.out.data_ptr()});
  report_rates(state, c);
}

void run_library(benchmark::State& state, torch::ScalarType dtype) {
  Case c(state.range(0), dtype);
  for (auto _ : state)
    at::linear_out(c.out, c.x, c.weight);
  report_rates(state, c);
}

void choose_rows(benchmark::internal::Benchmark* bench) {
  for (const int64_t rows : {1, 4, 5, 8, 9, 13, 16, 17, 25, 33, 49, 65})
    bench->Arg(rows);
  bench->Unit(benchmark::kMillisecond)->UseRealTime();
}

BENCHMARK_CAPTURE(run_kernel, float32, torch::kFloat)->Apply(choose_rows);
BENCHMARK_CAPTURE(run_library, float32, torch::kFloat)->Apply(choose_rows);
BENCHMARK_CAPTURE(run_kernel, bfloat16, torch::kBFloat16)->Apply(choose_rows);
BENCHMARK_CAPTURE(run_library, bfloat16, torch::kBFloat16)->Apply(choose_rows);

}  // namespace
}  // namespace draftsmith

BENCHMARK_MAIN();
