// SPDX-License-Identifier: Apache-2.0
// What a GPU reaches, and how near the operations come to it; for tools/device_check:
//   bench_device RESULTS.jsonl [--quick]
// Floors are measured in the same run: the rate of a large bfloat16 product, and that of a copy.
#include <cstdio>
#include <cstring>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/autograd/autograd.h>

#include "draftsmith/memory/device_memory.h"
#include "draftsmith/ops/block_attention.h"
#include "draftsmith/ops/lm_head_loss.h"
#include "draftsmith/ops/rms_norm.h"
#include "draftsmith/ops/rotary.h"
#include "draftsmith/ops/swiglu.h"
#include "draftsmith/ops/top_k.h"

#include "bench/device_report.h"

namespace draftsmith::bench {
namespace {

using torch::Tensor;

Rates measure_rates(Report& report) {
  constexpr int64_t n = 8192;
  const auto a = random_half({n, n}), b = random_half({n, n});
  auto out = torch::empty_like(a);
  const auto product = measure([&] { at::mm_out(out, a, b.t()); });
  const double flops = 2.0 * n * n * n / product.seconds;
  report.row(fmt::format("product 8192^3: {:.0f} TFLOP/s", flops / 1e12), product, product.seconds);
  const auto from = torch::empty({1 << 30}, torch::TensorOptions(torch::kByte).device(kDevice));
  auto to = torch::empty_like(from);
  const auto copy = measure([&] { to.copy_(from); });
  const double bytes = 2.0 * (1 << 30) / copy.seconds;
  report.row(fmt::format("copy of 1 GiB: {:.2f} TB/s", bytes / 1e12), copy, copy.seconds);
  return {flops, bytes};
}

/// Kernels against the bytes that they must move.
void run_layers(Report& report, const Rates& rates) {
  const at::NoGradGuard no_grad;
  constexpr int64_t R = 32768, D = 5120, I = 17408;
  const auto x = random_half({R, D}), weight = random_half({D});
  report.row(
      "rms_norm 32768 x 5120", measure([&] { ops::rms_norm(x, weight, 1e-6); }),
      2.0 * 2 * R * D / rates.bytes);
  const auto gate = random_half({R, I}), up = random_half({R, I});
  report.row(
      "swiglu 32768 x 17408", measure([&] { ops::swiglu(gate, up); }),
      3.0 * 2 * R * I / rates.bytes);
  const auto heads = random_half({1, R, 32, 128});
  const ops::RotaryAngles angles{random_half({1, R, 64}), random_half({1, R, 64})};
  report.row(
      "rotary 32768 x 32 x 128", measure([&] { ops::apply_rotary(heads, angles); }),
      2.0 * 2 * R * 32 * 128 / rates.bytes);
  const auto logits = random_half({16, 248320}, 3);
  report.row(
      "top_k 32 of 16 x 248320", measure([&] { ops::top_k(logits, 32); }),
      2.0 * 16 * 248320 / rates.bytes);
}

void run_layer_gradients(Report& report, const Rates& rates) {
  constexpr int64_t R = 32768, D = 5120, I = 17408;
  const auto x = random_half({R, D}).set_requires_grad(true);
  const auto weight = random_half({D}).set_requires_grad(true);
  const auto upstream = random_half({R, D});
  report.row(
      "rms_norm with gradient", measure([&] {
        torch::autograd::grad({ops::rms_norm(x, weight, 1e-6)}, {x, weight}, {upstream});
      }),
      5.0 * 2 * R * D / rates.bytes);
  const auto gate = random_half({R, I}).set_requires_grad(true);
  const auto up = random_half({R, I}).set_requires_grad(true);
  const auto wide = random_half({R, I});
  report.row(
      "swiglu with gradient", measure([&] {
        torch::autograd::grad({ops::swiglu(gate, up)}, {gate, up}, {wide});
      }),
      8.0 * 2 * R * I / rates.bytes);
}

/// Whole logits, of as many rows as fit: some ten float32 arrays of them.
void run_whole_logits(Report& report, const ops::LossRows& all, const Tensor& lm_head) {
  const int64_t row_bytes = 10 * 4 * lm_head.size(0);
  const int64_t most = ops::cuda::free_bytes(kDevice) * 9 / 10 / row_bytes;
  const int64_t R = std::min(all.labels.size(0), most / 512 * 512);
  ops::LossRows rows = all;
  rows.hidden = all.hidden.detach().narrow(0, 0, R).clone().set_requires_grad(true);
  rows.labels = all.labels.narrow(0, 0, R);
  rows.weights = all.weights.narrow(0, 0, R);
  rows.teacher_rows = all.teacher_rows.narrow(0, 0, R);
  const auto run = [&](ops::LossMethod method) {
    const ops::LossOptions options{
        .kl_weight = 0.15, .cap_weight = 0.1, .chunk_rows = 8192, .method = method};
    return measure(
        [&] {
          const auto terms = ops::lm_head_loss(rows, lm_head, options);
          torch::autograd::grad({terms.loss_sum}, {rows.hidden});
        },
        3);
  };
  const auto fused = run(ops::LossMethod::kFused);
  const auto name = fmt::format("head CE+KL+CAP {} rows", R);
  report.row(name + ", full, of fused", run(ops::LossMethod::kFull), fused.seconds);
}

/// The head at the reference case against its three products, and against its other methods.
void run_head(Report& report, bool is_quick) {
  const int64_t V = 248320, D = 5120, blocks = is_quick ? 64 : 1024, K = 32, stride = 48;
  const int64_t R = blocks * K;
  const auto number = torch::arange(R, torch::TensorOptions(torch::kLong).device(kDevice));
  ops::LossRows rows;
  rows.hidden = random_half({R, D}).set_requires_grad(true);
  rows.teacher_states = random_half({blocks * stride + K, D});
  rows.teacher_rows = number.div(K, "floor") * stride + number.remainder(K);
  rows.labels = (number * 7919).remainder(V);
  rows.weights = torch::ones({R}, rows.labels.options().dtype(torch::kFloat));
  const auto lm_head = random_half({V, D}, 0.014);

  constexpr int64_t kRows = 4096;  // of a product that the floor is made of
  double floor = 0;
  {
    const auto states = random_half({kRows, D});
    auto logits = random_half({kRows, V});
    auto back = torch::empty_like(states);
    const double forward = measure([&] { at::mm_out(logits, states, lm_head.t()); }).seconds;
    const double backward = measure([&] { at::mm_out(back, logits, lm_head); }).seconds;
    // No two blocks share a teacher row here: student and teacher take the forward product.
    floor = static_cast<double>(R) / kRows * (2 * forward + backward);
  }
  const auto run = [&](ops::LossOptions options) {
    return measure(
        [&] {
          const auto terms = ops::lm_head_loss(rows, lm_head, options);
          torch::autograd::grad({terms.loss_sum}, {rows.hidden});
        },
        3);
  };
  for (const int64_t chunk_rows : {2048, 4096, 8192, 16384}) {
    report.row(
        fmt::format("head CE+KL+CAP {} rows, chunk_rows {}", R, chunk_rows),
        run({.kl_weight = 0.15, .cap_weight = 0.1, .chunk_rows = chunk_rows}), floor,
        chunk_rows == 8192 && !is_quick ? 1.2 : 0);
  }
  report.row(
      fmt::format("head CE+KL+CAP {} rows, recompute", R),
      run(
          {.kl_weight = 0.15,
           .cap_weight = 0.1,
           .chunk_rows = 2048,
           .method = ops::LossMethod::kRecompute}),
      floor);
  run_whole_logits(report, rows, lm_head);
}

/// Attention of blocks with its gradient at the reference case, against the products it is made of
/// (2 forward, 5 backward) and against gathered keys.
void run_attention(Report& report, const Rates& rates, bool is_quick) {
  const int64_t documents = is_quick ? 1 : 12, length = 4096, K = 32, H = 32, G = 8, E = 128;
  const int64_t S = documents * length, N = is_quick ? 86 : 1024;
  ops::BlockLayout layout{
      torch::arange(N, torch::kLong).mul_(S - K).div_(N, "floor").view({1, N}),
      torch::ones({1, N}, torch::kBool),
      {},
      K};
  layout.context_begin = layout.anchors.div(length, "floor") * length;
  const auto leaf = [&](int64_t rows, int64_t heads) {
    return random_half({1, rows, heads, E}).set_requires_grad(true);
  };
  const ops::BlockAttentionInputs inputs{
      leaf(N * K, H), leaf(S, G), leaf(S, G), leaf(N * K, G), leaf(N * K, G)};
  const auto upstream = random_half({1, N * K, H, E});
  const auto run = [&](const ops::BlockVisibility& visibility, ops::AttentionMethod method) {
    return measure(
        [&] {
          const auto out = ops::block_attention(inputs, layout, visibility, method);
          torch::autograd::grad(
              {out},
              {inputs.query, inputs.context_key, inputs.context_value, inputs.block_key,
               inputs.block_value},
              {upstream});
        },
        3);
  };
  for (const int64_t window : {int64_t{0}, int64_t{2048}}) {
    auto seen = layout.anchors - layout.context_begin;
    if (window > 0) seen = seen.clamp_max(window);
    const double keys = static_cast<double>((seen + K).sum().item<int64_t>());
    const double floor = 7 * 2.0 * keys * static_cast<double>(K * H * E) / rates.flops;
    const ops::BlockVisibility visibility{window, window > 0};
    const auto name = fmt::format("attention {} blocks, {} context, window {}", N, S, window);
    const auto block = run(visibility, ops::AttentionMethod::kBlock);
    const auto gather = run(visibility, ops::AttentionMethod::kGather);
    report.row(name, block, floor);
    report.row(name + ", gather", gather, floor);
    // Must be five times faster.
    report.row(name + ", of gather", block, gather.seconds, is_quick ? 0 : 0.2);
  }
}

int run_all(const char* path, bool is_quick) {
  if (c10::cuda::device_count() == 0) {
    fmt::print("no GPU: nothing measured\n");
    return 77;
  }
  memory::use_expandable_segments();
  Report report(path);
  if (!report.is_open()) {
    fmt::print(stderr, "{}: expected a file that can be written, got none\n", path);
    return 2;
  }
  const auto rates = measure_rates(report);
  run_layers(report, rates);
  run_layer_gradients(report, rates);
  c10::cuda::CUDACachingAllocator::emptyCache();
  run_head(report, is_quick);
  c10::cuda::CUDACachingAllocator::emptyCache();
  run_attention(report, rates, is_quick);
  c10::cuda::CUDACachingAllocator::emptyCache();
  run_step(report, rates, is_quick);
  return report.misses() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace draftsmith::bench

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "bench_device: expected a file for results, got no argument\n");
    return 2;
  }
  const bool is_quick = argc > 2 && std::strcmp(argv[2], "--quick") == 0;
  return draftsmith::bench::run_all(argv[1], is_quick);
}
