// SPDX-License-Identifier: Apache-2.0
// Attention of blocks and the delta rule, as operations, against their definitions in float64 on
// the CPU with the same inputs.
#include <fmt/format.h>

#include <torch/csrc/autograd/autograd.h>

#include "draftsmith/ops/block_attention.h"
#include "draftsmith/ops/cached_attention.h"
#include "draftsmith/ops/delta_rule.h"
#include "draftsmith/ops/short_conv.h"

#include "tests/ops/cuda/kernel_place.h"
#include "tests/ops/cuda/op_checks.h"
#include "tests/support/random_tensor.h"

namespace draftsmith::testing {
namespace {

using torch::Tensor;

constexpr double kHalfUnit = 0x1p-8;  // largest relative error of a rounding to bfloat16

/// Errors: std::runtime_error unless the norm of the difference is at most `tolerance` of that of
/// `wanted`.
void require_near(
    const Tensor& got,
    const Tensor& wanted,
    double tolerance,
    const std::string& what) {
  const auto difference = (got.detach().cpu().to(torch::kDouble) - wanted).norm() / wanted.norm();
  const double value = difference.item<double>();
  require(
      value <= tolerance,
      fmt::format(
          "{}: expected a relative difference of {:.1e}, got {:.1e}", what, tolerance, value));
}

/// Values as `dtype` holds them, in float64.
Tensor rounded_normal(std::vector<int64_t> shape, uint64_t seed, torch::ScalarType dtype) {
  return random_normal(std::move(shape), seed).to(dtype).to(torch::kDouble);
}

struct Attention {
  std::vector<Tensor> inputs;  // query, context key and value, block key and value; float64
  Tensor upstream;
  ops::BlockLayout layout;
};

/// Two rows of two documents; one block is not kept.
Attention make_attention(int64_t E, torch::ScalarType dtype) {
  constexpr int64_t B = 2, S = 150, N = 4, K = 5, H = 4, G = 2;
  Attention a;
  a.layout = {
      torch::tensor({0, 40, 41, 149, 30, 90, 99, 120}, torch::kLong).view({B, N}),
      torch::ones({B, N}, torch::kBool), torch::zeros({B, N}, torch::kLong), K};
  a.layout.keep[1][1] = false;
  a.layout.context_begin.masked_fill_(a.layout.anchors >= 64, 64);
  uint64_t seed = 0;
  const auto values = [&](int64_t length, int64_t heads) {
    return rounded_normal({B, length, heads, E}, ++seed, dtype);
  };
  a.inputs = {values(N * K, H), values(S, G), values(S, G), values(N * K, G), values(N * K, G)};
  a.upstream = values(N * K, H);
  return a;
}

/// The output, and the gradients of the five inputs.
std::vector<Tensor> attend(
    const Attention& a,
    torch::Device device,
    torch::ScalarType dtype,
    const ops::BlockVisibility& visibility,
    ops::AttentionMethod method) {
  std::vector<Tensor> in;
  for (const Tensor& input : a.inputs)
    in.push_back(input.to(device, dtype).clone().set_requires_grad(true));
  const auto out =
      ops::block_attention({in[0], in[1], in[2], in[3], in[4]}, a.layout, visibility, method);
  auto results = torch::autograd::grad({out}, in, {a.upstream.to(device, dtype)});
  results.insert(results.begin(), out.detach());
  return results;
}

void check_attention(torch::Device device) {
  const char* names[] = {"out",           "query",     "context key",
                         "context value", "block key", "block value"};
  for (const auto dtype : {torch::kBFloat16, torch::kFloat}) {
    // Weights, score gradients and results are rounded, each once or twice.
    const double tolerance = dtype == torch::kFloat ? 1e-5 : 4 * kHalfUnit;
    for (const int64_t E : {64, 128}) {
      const auto a = make_attention(E, dtype);
      for (const auto& visibility :
           {ops::BlockVisibility{0, false}, ops::BlockVisibility{0, true},
            ops::BlockVisibility{20, true}}) {
        const auto wanted =
            attend(a, torch::kCPU, torch::kDouble, visibility, ops::AttentionMethod::kDense);
        for (const auto method : {ops::AttentionMethod::kBlock, ops::AttentionMethod::kGather}) {
          const auto got = attend(a, device, dtype, visibility, method);
          for (size_t i = 0; i < got.size(); ++i)
            require_near(
                got[i], wanted[i], tolerance,
                fmt::format(
                    "{} {} E={} window={} causal={}: {}",
                    method == ops::AttentionMethod::kBlock ? "block" : "gather",
                    c10::toString(dtype), E, visibility.window, visibility.is_causal_block,
                    names[i]));
        }
      }
    }
  }
}

/// Plans made ahead, for any layout of as many blocks, change no bit.
void check_plans(torch::Device device) {
  const auto a = make_attention(64, torch::kBFloat16);
  const ops::BlockVisibility visibility{20, true};
  const auto run = [&](const Attention& inputs) {
    return attend(inputs, device, torch::kBFloat16, visibility, ops::AttentionMethod::kBlock);
  };
  const auto wanted = run(a);
  const ops::BlockHeads heads{150, 4, 2, 64};
  if (!ops::needs_plans(device, torch::kBFloat16, heads)) return;
  for (const bool has_fixed_sizes : {false, true}) {
    auto planned = a;
    planned.layout.plans = ops::place_plans(
        a.layout, {ops::BlockVisibility{}, visibility}, heads, device, has_fixed_sizes);
    const auto got = run(planned);
    for (size_t i = 0; i < got.size(); ++i)
      require_same(got[i], wanted[i], fmt::format("result {}", i));
  }
}

struct Delta {
  ops::DeltaInputs exact;  // float64
  Tensor state;            // float64

  ops::DeltaInputs inputs(torch::Device device, torch::ScalarType dtype) const {
    return {
        exact.mixed.to(device, dtype), exact.decay.to(device, torch::kFloat),
        exact.beta.to(device, torch::kFloat), exact.shape};
  }
  Tensor state_on(torch::Device device) const { return state.to(device, torch::kFloat).clone(); }
};

Delta make_delta(const ops::DeltaShape& shape, int64_t B, int64_t T, torch::ScalarType dtype) {
  return {
      {rounded_normal({B, T, shape.width()}, 1, dtype),
       (-(random_normal({B, T, shape.value_heads}, 2)).exp()).to(torch::kFloat).to(torch::kDouble),
       random_normal({B, T, shape.value_heads}, 3).sigmoid().to(torch::kFloat).to(torch::kDouble),
       shape},
      rounded_normal({B, shape.value_heads, shape.key_dim, shape.value_dim}, 4, torch::kFloat)};
}

void check_delta_rule(torch::Device device) {
  const ops::DeltaShape shapes[] = {{1, 2, 64, 64}, {2, 2, 128, 128}};
  for (const auto dtype : {torch::kBFloat16, torch::kFloat}) {
    const double tolerance = dtype == torch::kFloat ? 1e-4 : 2 * kHalfUnit;
    for (const auto& shape : shapes) {
      constexpr int64_t B = 2, T = 140;
      const auto what = fmt::format("{} Ek={}", c10::toString(dtype), shape.key_dim);
      const auto delta = make_delta(shape, B, T, dtype);
      const std::vector<ops::Span> spans = {{0, 0, T}, {1, 0, 77}};
      auto wanted_state = delta.state.clone();
      const auto wanted = ops::delta_rule_chunked_plain(delta.exact, spans, wanted_state);

      auto state = delta.state_on(device);
      require_near(
          ops::delta_rule_chunked(delta.inputs(device, dtype), spans, state), wanted, tolerance,
          what + " chunks");
      require_near(state, wanted_state, tolerance, what + " state after chunks");

      state = delta.state_on(device);
      require_near(
          ops::delta_rule_recurrent(delta.inputs(device, dtype), {T, 77}, state), wanted, tolerance,
          what + " token by token");
      require_near(state, wanted_state, tolerance, what + " state after tokens");
    }
  }
}

void check_delta_trees(torch::Device device) {
  const ops::DeltaShape shape{1, 2, 64, 64};
  const auto tree = ops::make_tree_layout({{-1, 0, 0, 1, 1, 3, 2, 6}, {-1, 0, 1, 1, 0}});
  for (const auto dtype : {torch::kBFloat16, torch::kFloat}) {
    const auto delta = make_delta(shape, tree.B, tree.T, dtype);
    const auto wanted = ops::delta_rule_tree_by_ancestors(delta.exact, tree, delta.state);
    const auto got =
        ops::delta_rule_tree(delta.inputs(device, dtype), tree, delta.state_on(device));
    for (int64_t b = 0; b < tree.B; ++b) {
      const int64_t nodes = tree.sizes[static_cast<size_t>(b)];  // padding means nothing
      require_near(
          got[b].narrow(0, 0, nodes), wanted[b].narrow(0, 0, nodes),
          dtype == torch::kFloat ? 1e-4 : 2 * kHalfUnit,
          fmt::format("{} tree {}", c10::toString(dtype), b));
    }
  }
}

void check_decoding_ops(torch::Device device) {
  const auto tree = ops::make_tree_layout({{-1, 0, 0, 1, 1}, {-1, 0, 1}});
  const auto query = rounded_normal({2, 5, 4, 64}, 1, torch::kBFloat16);
  const auto key = rounded_normal({2, 40, 2, 64}, 2, torch::kBFloat16);
  const auto value = rounded_normal({2, 40, 2, 64}, 3, torch::kBFloat16);
  const auto tokens = rounded_normal({2, 5, 96}, 4, torch::kBFloat16);
  const auto filter = rounded_normal({4, 96}, 5, torch::kBFloat16);
  const auto window = rounded_normal({2, 3, 96}, 6, torch::kBFloat16);
  const auto sources = ops::tree_sources(tree, 4);
  for (const auto dtype : {torch::kBFloat16, torch::kFloat}) {
    const double tolerance = dtype == torch::kFloat ? 1e-5 : 2 * kHalfUnit;
    const auto there = [&](const Tensor& x) { return x.to(device, dtype); };
    for (const ops::TreeLayout* layout : {static_cast<const ops::TreeLayout*>(nullptr), &tree})
      require_near(
          ops::cached_attention(there(query), there(key), there(value), {30, 7}, layout),
          ops::cached_attention(query, key, value, {30, 7}, layout), tolerance, "cached attention");
    require_near(
        ops::short_conv(there(tokens), there(filter), there(window), sources),
        ops::short_conv(tokens, filter, window, sources), tolerance, "short convolution");
  }
}

}  // namespace

std::vector<OpCheck> mixer_op_checks() {
  return {
      {"AttentionOfBlocksHasTheValuesAndGradientsOfItsDefinition", check_attention},
      {"AttentionOfBlocksTakesPlansThatWereMadeAhead", check_plans},
      {"TheDeltaRuleHasTheValuesOfItsDefinition", check_delta_rule},
      {"TheDeltaRuleHasTheValuesOfItsDefinitionAlongTrees", check_delta_trees},
      {"DecodingOpsHaveTheValuesOfTheCpu", check_decoding_ops}};
}

}  // namespace draftsmith::testing
