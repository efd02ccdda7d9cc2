// SPDX-License-Identifier: Apache-2.0
// The planner's bytes against the measured peaks of two training steps, each case in a process of
// its own: tensor bytes, and resident memory beyond what the program has before the first tensor.
//   build/release/bin/bench_plan [CASE]
//   build/release/bin/bench_plan target DIR TOKENS    a forward of the target in DIR (bench_target
//                                                     make DIR) over one row, bfloat16 and float32
#include <cctype>
#include <string>

#include "draftsmith/base/child_process.h"
#include "draftsmith/memory/planner.h"
#include "draftsmith/model/target.h"

#include "bench/measure.h"
#include "bench/shaped_run.h"

namespace draftsmith::bench {
namespace {

const ShapeSizes kCases[] = {
    {512, 1536, 8, 4, 64, 3, 3, 32000, 2048, 64, 16, 0, true, true, false, 512},
    {512, 1536, 8, 4, 64, 3, 3, 32000, 2048, 64, 16, 0, true, true, true, 512},
    {768, 2048, 12, 3, 64, 5, 5, 49152, 4096, 128, 16, 512, true, false, false, 1024, 32},
    {1024, 3072, 16, 8, 128, 2, 4, 65000, 1024, 128, 16, 0, true, true, false, 256, 0, true},
    {384, 1024, 6, 6, 64, 8, 2, 16000, 8192, 32, 32, 1024, false, true, false, 512},
    {384, 1024, 6, 6, 64, 8, 2, 16000, 8192, 32, 32, 1024, false, true, true, 128},
    {640, 2560, 10, 2, 64, 4, 6, 100000, 512, 256, 8, 0, true, true, false, 128, 256},
    {256, 512, 4, 1, 64, 6, 3, 8000, 16384, 512, 8, 256, true, false, true, 2048, 256},
    {896, 2432, 14, 2, 64, 4, 5, 151936, 3000, 100, 16, 2048, false, true, false, 64},
    {1024, 2816, 16, 4, 64, 5, 5, 32000, 6000, 200, 32, 2048, true, true, true, 1024, 0, true}};

struct Measured {
  int64_t tensors, resident;
};

Measured measure_steps(const ShapeSizes& sizes) {
  reset_resident_peak();
  const int64_t tensors = memory::host_bytes().live;
  // Blocks that wait for reuse are taken for the run's tensors.
  const int64_t resident = resident_bytes() - memory::host_bytes().idle;
  ShapedRun run(make_shape(sizes));
  memory::reset_host_peak();  // making random weights is no part of a step
  run.run_step();
  run.run_step();
  return {
      memory::host_bytes().peak - tensors - run.lm_head_bytes(),
      resident_peak_bytes() - resident - run.lm_head_bytes()};
}

std::string mebibytes(int64_t bytes) {
  return fmt::format("{:.1f}", static_cast<double>(bytes) / (1 << 20));
}

void print_case(const ShapeSizes& c) {
  // A tiny case first: pages of the program and of its libraries are no tensors.
  measure_steps({64, 128, 2, 1, 64, 1, 1, 500, 64, 4, 4, 0, c.is_bfloat16, true, false, 16});
  const auto plan = memory::plan_memory(make_shape(c));
  const int64_t planned = plan.drafter_step;
  const auto [tensors, resident] = measure_steps(c);
  const auto ratio = [](int64_t expected, int64_t measured) {
    return fmt::format("{:.3f}", static_cast<double>(expected) / static_cast<double>(measured));
  };
  print_row(
      {fmt::format(
           "{} x {}, {}/{} of {}", c.hidden, c.intermediate, c.heads, c.kv_heads, c.head_dim),
       fmt::format("{}, {}", c.layers, c.captured),
       fmt::format("{}, {} x {}", c.tokens, c.blocks, c.block_size), fmt::format("{}", c.window),
       fmt::format(
           "{}{}", c.is_bfloat16 ? "bfloat16" : "float32", c.splits_masters ? ", split" : ""),
       c.recomputes ? "layer" : "none", fmt::format("{}", c.tree_budget), mebibytes(planned),
       mebibytes(tensors), ratio(planned, tensors), mebibytes(resident),
       ratio(planned + plan.beside_tensors(), resident)});
}

/// A forward of a target, captured layers and all, with its weights mapped or converted before.
void print_target(const std::string& folder, const std::string& dtype, int64_t tokens) {
  model::TargetSettings settings;
  settings.path = folder;
  settings.dtype = dtype;
  const auto target = model::Target::load(settings);
  memory::StepShape shape;
  shape.target = target.config();
  shape.drafter.hidden_size = target.config().hidden_size;
  shape.drafter.target_layer_ids = {1, target.config().num_layers - 2};
  shape.element_bytes = shape.target_element_bytes = dtype == "float32" ? 4 : 2;
  shape.context_tokens = tokens;
  shape.threads = at::get_num_threads();
  shape.product_scratch = memory::measure_product_scratch();
  memory::Ledger planned;
  memory::add_target_forward(planned, shape);
  const auto ids = torch::arange(tokens, torch::kLong).remainder(1000).unsqueeze(0);
  target.forward(ids, shape.drafter.target_layer_ids);
  memory::reset_host_peak();
  const int64_t before = memory::host_bytes().live;
  target.forward(ids, shape.drafter.target_layer_ids);
  const int64_t peak = memory::host_bytes().peak - before;
  print_row(
      {folder, dtype, fmt::format("{}", tokens), mebibytes(planned.peak()), mebibytes(peak),
       fmt::format("{:.3f}", static_cast<double>(planned.peak()) / static_cast<double>(peak))});
}

}  // namespace
}  // namespace draftsmith::bench

int main(int argc, char** argv) {
  using namespace draftsmith;
  using namespace draftsmith::bench;
  if (argc == 4 && std::string(argv[1]) == "target") {
    memory::install_host_allocator();
    print_header({"target", "dtype", "tokens", "planned MiB", "tensors MiB", "ratio"});
    for (const char* dtype : {"bfloat16", "float32"})
      print_target(argv[2], dtype, std::stoll(argv[3]));
    return 0;
  }
  if (argc > 2 || (argc == 2 && !std::isdigit(argv[1][0]))) {
    fmt::print(stderr, "usage: bench_plan [CASE] | target DIR TOKENS\n");
    return 2;
  }
  if (argc == 2) {
    memory::install_host_allocator();
    print_case(kCases[std::stoul(argv[1]) % std::size(kCases)]);
    return 0;
  }
  print_header(
      {"hidden x MLP, heads", "layers, captured", "tokens, blocks", "window", "dtype", "recompute",
       "trees", "planned MiB", "tensors MiB", "ratio", "resident MiB", "ratio"});
  for (size_t i = 0; i < std::size(kCases); ++i) {
    const auto child = run_self({std::to_string(i)});
    fmt::print("{}{}", child.out, child.err);
    std::fflush(stdout);
  }
}
