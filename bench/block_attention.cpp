// SPDX-License-Identifier: Apache-2.0
// Attention of draft blocks, forward and backward: tiles against gathered keys and against the
// products that cannot be avoided, and how its time grows with anchors and with the sequence
// (--longer: that alone).
//   build/release/bin/bench_block_attention [--quick] [--longer]
#include "draftsmith/ops/block_attention.h"

#include <algorithm>

#include <torch/csrc/autograd/autograd.h>

#include "bench/measure.h"

namespace draftsmith::bench {
namespace {

using ops::AttentionMethod;
using torch::Tensor;

constexpr int64_t kSlots = 32, kHeads = 16, kKeyHeads = 8;

struct Case {
  int64_t tokens, anchors, head_dim, window;  // window 0: a full layer
  int64_t first_anchor = 0;
  int64_t last_anchor = tokens;  // before it

  std::string heads() const { return fmt::format("{}/{} of {}", kHeads, kKeyHeads, head_dim); }
  std::string kind() const { return window == 0 ? "full" : fmt::format("window {}", window); }
};

/// One layer's attention of a batch that stands in one row, its anchors evenly spread.
struct Attention {
  explicit Attention(const Case& c)
      : in{random_bfloat16({1, c.anchors * kSlots, kHeads, c.head_dim}, 1, 1),
           random_bfloat16({1, c.tokens, kKeyHeads, c.head_dim}, 1, 2),
           random_bfloat16({1, c.tokens, kKeyHeads, c.head_dim}, 1, 3),
           random_bfloat16({1, c.anchors * kSlots, kKeyHeads, c.head_dim}, 1, 4),
           random_bfloat16({1, c.anchors * kSlots, kKeyHeads, c.head_dim}, 1, 5)},
        upstream(random_bfloat16(in.query.sizes(), 1, 6)),
        visibility{c.window, c.window > 0} {
    const auto number = torch::arange(c.anchors, torch::kLong);
    layout.anchors = (c.first_anchor + number * (c.last_anchor - c.first_anchor) / c.anchors)
                         .to(torch::kLong)
                         .unsqueeze(0);
    layout.keep = torch::ones({1, c.anchors}, torch::kBool);
    layout.context_begin = torch::zeros({1, c.anchors}, torch::kLong);
    layout.block_size = kSlots;
    for (Tensor* tensor :
         {&in.query, &in.context_key, &in.context_value, &in.block_key, &in.block_value})
      tensor->set_requires_grad(true);
  }

  void run(AttentionMethod method) const {
    const auto out = ops::block_attention(in, layout, visibility, method);
    torch::autograd::grad(
        {out}, {in.query, in.context_key, in.context_value, in.block_key, in.block_value},
        {upstream});
  }

  /// Two products forward and five backward, which computes the scores again.
  double flops() const {
    int64_t visible = 0;
    for (int64_t n = 0; n < layout.anchors.numel(); ++n) {
      const int64_t anchor = layout.anchors[0][n].item<int64_t>();
      for (int64_t k = 0; k < kSlots; ++k) {
        const int64_t context = visibility.window > 0 ? visibility.window - 1 - k : anchor;
        visible += std::clamp<int64_t>(context, 0, anchor);
        visible += visibility.is_causal_block ? k + 1 : kSlots;
      }
    }
    return 7 * 2 * static_cast<double>(visible * kHeads * in.query.size(3));
  }

  /// The output and the gradients, which every method makes.
  int64_t needed_bytes() const {
    return 2 * in.query.numel() * 2 + 2 * (in.context_key.numel() + in.block_key.numel()) * 2;
  }

  ops::BlockAttentionInputs in;
  Tensor upstream;
  ops::BlockLayout layout;
  ops::BlockVisibility visibility;
};

double mebibytes(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

void compare_methods(const std::vector<Case>& cases, int repeats, double rate) {
  print_header(
      {"tokens, blocks", "heads", "layer", "block, s", "gather, s", "faster by", "floor, s",
       "block / floor", "block, extra MiB", "gather, extra MiB", "ratio"});
  for (const Case& c : cases) {
    const Attention attention(c);
    std::vector<Contender> both = {
        {"block", [&] { attention.run(AttentionMethod::kBlock); }},
        {"gather", [&] { attention.run(AttentionMethod::kGather); }}};
    both[0].run();
    measure(both, repeats);
    for (auto& contender : both)
      contender.extra_bytes -= attention.needed_bytes();
    const double floor = attention.flops() / rate;
    print_row(
        {fmt::format("{}, {} x {}", c.tokens, c.anchors, kSlots), c.heads(), c.kind(),
         fmt::format("{:.2f}", both[0].time()), fmt::format("{:.2f}", both[1].time()),
         fmt::format("{:.1f} x", both[1].time() / both[0].time()), fmt::format("{:.2f}", floor),
         fmt::format("{:.2f}", both[0].time() / floor),
         fmt::format("{:.0f}", mebibytes(both[0].extra_bytes)),
         fmt::format("{:.0f}", mebibytes(both[1].extra_bytes)),
         fmt::format(
             "1/{:.0f}",
             static_cast<double>(both[1].extra_bytes) / static_cast<double>(both[0].extra_bytes))});
  }
}

/// Times of cases that differ in one number, run in turn; `share(case)` is what time should be
/// proportional to.
void show_growth(
    const std::vector<Case>& cases,
    int repeats,
    const std::function<int64_t(const Case&)>& share) {
  print_header({"tokens, blocks", "heads", "layer", "s", "against proportion to the first"});
  std::vector<Attention> attentions;
  for (const Case& c : cases)
    attentions.emplace_back(c);
  std::vector<Contender> all;
  for (const auto& attention : attentions)
    all.push_back({"", [&] { attention.run(AttentionMethod::kBlock); }});
  measure(all, 1);
  for (auto& contender : all)
    contender.seconds.clear();
  measure(all, repeats);
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    const double proportion =
        all[0].time() * static_cast<double>(share(c)) / static_cast<double>(share(cases[0]));
    print_row(
        {fmt::format("{}, {} x {}", c.tokens, c.anchors, kSlots), c.heads(), c.kind(),
         fmt::format("{:.3f}", all[i].time()), fmt::format("{:.2f}", all[i].time() / proportion)});
  }
}

struct Sizes {
  int64_t tokens, anchors, window;
  int repeats;
};

void show_methods(const Sizes& sizes, double rate) {
  std::vector<Case> methods;
  for (const int64_t head_dim : {128, 64})
    for (const int64_t of_layer : {sizes.window, int64_t{0}})
      methods.push_back({sizes.tokens, sizes.anchors, head_dim, of_layer});
  compare_methods(methods, std::min(3, sizes.repeats), rate);
}

void show_more_anchors(const Sizes& sizes) {
  for (const int64_t of_layer : {sizes.window, int64_t{0}}) {
    fmt::print("\n");
    std::vector<Case> cases;
    for (int64_t doubling = 0; doubling <= 4; ++doubling)
      cases.push_back({sizes.tokens, (sizes.anchors / 8) << doubling, 128, of_layer, sizes.window});
    show_growth(cases, sizes.repeats, [](const Case& c) { return c.anchors; });
  }
}

/// The same anchors in longer sequences, and anchors that are spread over all of them.
void show_longer_sequences(const Sizes& sizes) {
  for (const bool are_spread : {false, true}) {
    fmt::print("\n{}:\n", are_spread ? "anchors all over the sequence" : "the same anchors");
    std::vector<Case> cases;
    for (int64_t doubling = 0; doubling <= 3; ++doubling) {
      const int64_t tokens = (2 * sizes.window) << doubling;
      cases.push_back(
          {tokens, sizes.anchors, 128, sizes.window, sizes.window,
           are_spread ? tokens : 2 * sizes.window});
    }
    show_growth(cases, sizes.repeats, [](const Case&) { return int64_t{1}; });
  }
}

void run(bool is_quick, bool is_longer_only) {
  const Sizes sizes = is_quick ? Sizes{2000, 64, 512, 1} : Sizes{8000, 256, 2048, 3};
  if (!is_longer_only) {
    const double rate = measure_gemm_rate();
    fmt::print("products at {:.0f} GFLOP/s, bfloat16, forward and backward\n\n", rate / 1e9);
    show_methods(sizes, rate);
    show_more_anchors(sizes);
  }
  show_longer_sequences(sizes);
}

}  // namespace
}  // namespace draftsmith::bench

int main(int argc, char** argv) {
  const auto flags = draftsmith::bench::read_flags(
      argc, argv, {"--quick", "--longer"}, "bench_block_attention [--quick] [--longer]");
  draftsmith::memory::install_host_allocator();
  draftsmith::bench::run(flags.contains("--quick"), flags.contains("--longer"));
}
