// SPDX-License-Identifier: Apache-2.0
// A draft tree from the logits of a block of 32 over a vocabulary of 248,320, beside one pass that
// only reads the logits.
#include "draftsmith/eval/draft_tree.h"

#include <benchmark/benchmark.h>

#include <atomic>

#include <ATen/Parallel.h>
#include <torch/types.h>

namespace draftsmith {
namespace {

constexpr int64_t kRows = 31;
constexpr int64_t kVocabSize = 248320;

torch::Tensor make_logits(torch::ScalarType dtype) {
  torch::manual_seed(1);
  return (torch::randn({kRows, kVocabSize}) * 3).to(dtype);
}

void report_bytes(benchmark::State& state, const torch::Tensor& logits) {
  state.SetBytesProcessed(
      static_cast<int64_t>(state.iterations()) * static_cast<int64_t>(logits.nbytes()));
}

void read_once(benchmark::State& state, torch::ScalarType dtype) {
  const auto logits = make_logits(dtype);
  const auto* words = static_cast<const uint64_t*>(logits.const_data_ptr());
  const auto count = static_cast<int64_t>(logits.nbytes() / sizeof(uint64_t));
  for (auto _ : state) {
    std::atomic<uint64_t> total = 0;
    at::parallel_for(0, count, 65536, [&](int64_t begin, int64_t end) {
      uint64_t sum = 0;
      for (int64_t i = begin; i < end; ++i)
        sum += words[i];
      total += sum;
    });
    benchmark::DoNotOptimize(total.load());
  }
  report_bytes(state, logits);
}

void find_top_k(benchmark::State& state, torch::ScalarType dtype) {
  const auto logits = make_logits(dtype);
  for (auto _ : state)
    benchmark::DoNotOptimize(ops::top_k(logits, state.range(0)));
  report_bytes(state, logits);
}

void build_tree(benchmark::State& state, torch::ScalarType dtype) {
  const auto logits = make_logits(dtype);
  for (auto _ : state)
    benchmark::DoNotOptimize(eval::build_draft_tree(logits, state.range(0)));
  report_bytes(state, logits);
}

BENCHMARK_CAPTURE(read_once, float32, torch::kFloat)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(read_once, bfloat16, torch::kBFloat16)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(find_top_k, float32, torch::kFloat)
    ->Arg(1)
    ->Arg(256)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(build_tree, float32, torch::kFloat)
    ->Arg(32)
    ->Arg(256)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(build_tree, bfloat16, torch::kBFloat16)
    ->Arg(256)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace draftsmith

BENCHMARK_MAIN();
