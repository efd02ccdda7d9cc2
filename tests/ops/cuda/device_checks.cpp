// SPDX-License-Identifier: Apache-2.0
// Every check of kernels, operations and steps on a GPU, for tools/device_check: a line each, and how many
// failed as exit status (77 where there is no GPU).
#include <fmt/format.h>

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "draftsmith/memory/device_memory.h"
#include "draftsmith/ops/cuda/graph.h"
#include "draftsmith/ops/cuda/on_device.h"
#include "draftsmith/ops/rms_norm.h"
#include "draftsmith/ops/swiglu.h"

#include "tests/ops/cuda/kernel_place.h"
#include "tests/ops/cuda/op_checks.h"
#include "tests/support/random_tensor.h"
#include "tests/train/step_checks.h"

namespace draftsmith::testing {
namespace {

/// Pointers are the device's; what was launched has ended when `run` returns.
class DevicePlace : public KernelPlace {
 public:
  torch::Device device() const override { return {torch::kCUDA, 0}; }

  void run(const ops::RmsNormParams& params) override {
    launch(params, ops::cuda::compute_rms_norm);
  }
  void run(const ops::RmsNormGradientParams& params) override {
    const auto partial = torch::empty(
        {ops::cuda::rms_norm_partial_size(params.rows, params.width)},
        torch::TensorOptions(torch::kDouble).device(device()));
    ops::cuda::compute_rms_norm_gradient(params, partial.data_ptr<double>(), stream().stream());
    stream().synchronize();
  }
  void run(const ops::RotaryParams& params) override { launch(params, ops::cuda::compute_rotary); }
  void run(const ops::SwigluParams& params) override { launch(params, ops::cuda::compute_swiglu); }
  void run(const ops::TopKParams& params) override { launch(params, ops::cuda::compute_top_k); }
  void run(const ops::TeacherRowsParams& params) override {
    launch(params, ops::cuda::compute_teacher_rows);
  }
  void run(const ops::HeadRowsParams& params) override {
    launch(params, ops::cuda::compute_head_rows);
  }
  void run(const ops::cuda::BlockAttentionParams& params) override {
    launch(params, ops::cuda::compute_block_attention);
  }
  void run(const ops::cuda::BlockAttentionGradientParams& params) override {
    launch(params, ops::cuda::compute_block_attention_gradient);
  }
  void run(const ops::DeltaChunkParams& params) override {
    launch(params, ops::cuda::compute_delta_chunks);
  }
  void run(const ops::cuda::DeltaWalkParams& params) override {
    launch(params, ops::cuda::compute_delta_walk);
  }

 private:
  static c10::cuda::CUDAStream stream() { return c10::cuda::getCurrentCUDAStream(); }

  template <class Params>
  static void launch(const Params& params, void (*compute)(const Params&, ops::cuda::Stream)) {
    compute(params, stream().stream());
    stream().synchronize();
  }
};

torch::Tensor run_some_ops(const torch::Tensor& x, const torch::Tensor& weight) {
  return ops::swiglu(ops::rms_norm(x, weight, 1e-6), x);
}

/// Kernels can be captured, and read their inputs anew at every replay.
void check_graphs(torch::Device device) {
  const at::NoGradGuard no_grad;
  const auto x = random_normal({64, 512}, 1).to(torch::kBFloat16).to(device);
  const auto weight = random_normal({512}, 2).to(torch::kBFloat16).to(device);
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  run_some_ops(x, weight);  // loads the kernels
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  const auto out = run_some_ops(x, weight);
  graph.capture_end();
  for (const uint64_t seed : {3, 4}) {
    x.copy_(random_normal({64, 512}, seed).to(torch::kBFloat16));
    graph.replay();
    require_same(out, run_some_ops(x, weight), "a replay");
  }
}

/// Operations go to the current stream, and an event orders another one after it.
void check_streams(torch::Device device) {
  const at::NoGradGuard no_grad;
  const auto weight = random_normal({4096}, 2).to(torch::kBFloat16).to(device);
  const auto x = random_normal({4096, 4096}, 1).to(torch::kBFloat16).to(device);
  const auto wanted = run_some_ops(run_some_ops(x, weight), weight);
  c10::cuda::getCurrentCUDAStream().synchronize();
  const auto first = c10::cuda::getStreamFromPool(), second = c10::cuda::getStreamFromPool();
  c10::Event done(torch::kCUDA);
  torch::Tensor middle, out;
  {
    const c10::cuda::CUDAStreamGuard guard(first);
    middle = run_some_ops(x, weight);
    done.record(first.unwrap());
  }
  {
    const c10::cuda::CUDAStreamGuard guard(second);
    done.block(second.unwrap());
    out = run_some_ops(middle, weight);
    second.synchronize();
  }
  require_same(out, wanted, "two streams");
}

template <class Check>
int count_failure(const char* name, const Check& check) {
  try {
    check();
    fmt::print("ok    {}\n", name);
    return 0;
  } catch (const std::exception& error) {
    fmt::print("FAIL  {}: {}\n", name, error.what());
    return 1;
  }
}

int run_all() {
  if (c10::cuda::device_count() == 0) {
    fmt::print(
        "no GPU: {} checks of kernels, {} of operations, {} of steps not run\n",
        kernel_checks().size(), op_checks().size(), step_checks().size());
    return 77;
  }
  memory::use_expandable_segments();
  const torch::Device device(torch::kCUDA, 0);
  const c10::cuda::CUDAGuard guard(device);
  DevicePlace place;
  int failures = 0;
  for (const auto& check : kernel_checks())
    failures += count_failure(check.name, [&] { check.run(place); });
  auto ops = op_checks();
  ops.push_back({"GraphsReadTheirInputsAtEveryReplay", check_graphs});
  ops.push_back({"StreamsHandOver", check_streams});
  for (const auto& check : ops)
    failures += count_failure(check.name, [&] { check.run(device); });
  const StepPlace steps{device, [&] { return ops::cuda::make_graph_recorder(device); }};
  for (const auto& check : step_checks())
    failures += count_failure(check.name, [&] { check.run(steps); });
  fmt::print("{} failed\n", failures);
  return std::min(failures, 70);
}

}  // namespace
}  // namespace draftsmith::testing

int main() { return draftsmith::testing::run_all(); }
