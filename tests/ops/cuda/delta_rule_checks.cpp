// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "draftsmith/ops/delta_rule.h"
#include "draftsmith/ops/storage.h"
#include "draftsmith/ops/tree_walk.h"

#include "tests/ops/cuda/kernel_place.h"
#include "tests/support/random_tensor.h"

namespace draftsmith::testing {
namespace {

using ops::DeltaInputs;
using ops::DeltaShape;
using ops::Span;
using torch::Tensor;

const DeltaShape kNarrow{1, 2, 64, 32};
const DeltaShape kWide{1, 1, 128, 64};

/// Values as `dtype` holds them; gates from hardly any decay to states that are gone after a token.
DeltaInputs make_inputs(const DeltaShape& shape, int64_t B, int64_t T, torch::ScalarType dtype) {
  return {
      random_normal({B, T, shape.width()}, 1).to(dtype),
      -(random_normal({B, T, shape.value_heads}, 2) * 2).exp().to(torch::kFloat),
      random_normal({B, T, shape.value_heads}, 3).sigmoid().to(torch::kFloat), shape};
}

Tensor make_state(const DeltaShape& shape, int64_t B) {
  return random_normal({B, shape.value_heads, shape.key_dim, shape.value_dim}, 4).to(torch::kFloat);
}

DeltaInputs widened(const DeltaInputs& inputs) {
  return {
      inputs.mixed.to(torch::kDouble), inputs.decay.to(torch::kDouble),
      inputs.beta.to(torch::kDouble), inputs.shape};
}

void require_near(
    const Tensor& got,
    const Tensor& wanted,
    double tolerance,
    const std::string& what) {
  const auto wide = wanted.to(torch::kDouble);
  const double difference =
      ((got.cpu().to(torch::kDouble) - wide).norm() / wide.norm()).item<double>();
  require(
      difference <= tolerance,
      fmt::format("{}: expected a relative difference of {}, got {}", what, tolerance, difference));
}

/// The output of the chunk kernel; `state` follows if it is defined.
Tensor run_chunks(
    KernelPlace& place,
    const DeltaInputs& inputs,
    const std::vector<Span>& spans,
    Tensor& state) {
  const auto there = [&](const Tensor& x) { return x.to(place.device()); };
  const auto mixed = there(inputs.mixed), decay = there(inputs.decay), beta = there(inputs.beta);
  std::vector<int64_t> numbers;
  for (const Span& span : spans)
    numbers.insert(numbers.end(), {span.row, span.begin, span.end});
  const auto joined = there(torch::tensor(numbers, torch::kLong));
  const DeltaShape& shape = inputs.shape;
  const int64_t T = mixed.size(1);
  auto out = torch::zeros({mixed.size(0), T, shape.value_heads, shape.value_dim}, mixed.options());
  if (state.defined()) state = there(state).clone();
  place.run(ops::DeltaChunkParams{
      .storage = ops::Storage::kBF16,
      .mixed = mixed.const_data_ptr(),
      .decay = decay.const_data_ptr(),
      .beta = beta.const_data_ptr(),
      .spans = reinterpret_cast<const Span*>(joined.const_data_ptr<int64_t>()),
      .num_spans = std::ssize(spans),
      .T = T,
      .Hk = shape.key_heads,
      .Hv = shape.value_heads,
      .Ek = shape.key_dim,
      .Ev = shape.value_dim,
      .state = state.defined() ? state.data_ptr() : nullptr,
      .out = out.data_ptr()});
  return out.cpu();
}

void check_chunks(KernelPlace& place) {
  for (const auto& [shape, lengths] :
       {std::pair(kNarrow, std::vector<int64_t>{1, 63, 65}), {kWide, {70}}}) {
    for (const int64_t T : lengths) {
      const auto what = fmt::format("width {}, {} tokens", shape.key_dim, T);
      const auto inputs = make_inputs(shape, 2, T, torch::kBFloat16);
      const std::vector<Span> spans = {{0, 0, T}, {1, 0, (T + 1) / 2}};
      auto state = make_state(shape, 2);
      auto wanted_state = state.to(torch::kDouble);
      const auto wanted = ops::delta_rule_chunked_plain(widened(inputs), spans, wanted_state);
      // The output is rounded to bfloat16. The state is not: products with it keep 16 bits.
      require_near(run_chunks(place, inputs, spans, state), wanted, 0x1p-9, what);
      require_near(state, wanted_state, 0x1p-14, what + ", state");
    }
  }
}

void check_spans(KernelPlace& place) {
  const auto inputs = make_inputs(kNarrow, 2, 100, torch::kBFloat16);
  const std::vector<Span> spans = {{0, 0, 5}, {0, 5, 75}, {1, 0, 64}};
  Tensor no_state;
  const auto got = run_chunks(place, inputs, spans, no_state);
  require_near(
      got, ops::delta_rule_chunked_plain(widened(inputs), spans), 0x1p-9, "spans without states");
  require(
      got[0].narrow(0, 75, 25).count_nonzero().item<int64_t>() == 0 &&
          got[1].narrow(0, 64, 36).count_nonzero().item<int64_t>() == 0,
      "a token outside the spans has an output");
}

/// The output of the walk, along `tree` if there is one; `state` follows a line.
Tensor run_walk(
    KernelPlace& place,
    const DeltaInputs& inputs,
    const std::vector<int64_t>& row_tokens,
    Tensor& state,
    const ops::TreeLayout* tree = nullptr) {
  const auto there = [&](const Tensor& x) { return x.to(place.device()).contiguous(); };
  const auto mixed = there(inputs.mixed), decay = there(inputs.decay), beta = there(inputs.beta);
  const DeltaShape& shape = inputs.shape;
  const int64_t B = mixed.size(0), T = mixed.size(1);
  const auto counts = there(torch::tensor(row_tokens, torch::kInt));
  auto out = torch::zeros({B, T, shape.value_heads, shape.value_dim}, mixed.options());
  state = there(state).clone();
  ops::cuda::DeltaWalkParams params{
      .storage = ops::storage_of(mixed),
      .mixed = mixed.const_data_ptr(),
      .decay = decay.const_data_ptr<float>(),
      .beta = beta.const_data_ptr<float>(),
      .counts = counts.const_data_ptr<int32_t>(),
      .B = B,
      .T = T,
      .Hk = shape.key_heads,
      .Hv = shape.value_heads,
      .Ek = shape.key_dim,
      .Ev = shape.value_dim,
      .state = state.data_ptr<float>(),
      .out = out.data_ptr()};
  Tensor steps, slots;
  if (tree != nullptr) {
    const auto walk = ops::plan_tree_walk(*tree);
    std::vector<int32_t> numbers;
    for (const auto& step : walk.steps)
      numbers.insert(numbers.end(), {step.node, step.from, step.to});
    steps = there(torch::tensor(numbers, torch::kInt));
    slots = torch::full(
        {B, walk.num_slots, shape.value_heads, shape.key_dim, shape.value_dim}, 99,
        state.options());
    params.steps = reinterpret_cast<const ops::cuda::TreeStep*>(steps.const_data_ptr<int32_t>());
    params.num_slots = walk.num_slots;
    params.slots = slots.data_ptr<float>();
  }
  place.run(params);
  return out.cpu();
}

void check_walk(KernelPlace& place) {
  for (const auto& shape : {kNarrow, kWide}) {
    for (const auto dtype : {torch::kBFloat16, torch::kFloat}) {
      const auto what = fmt::format("width {}, {}", shape.key_dim, c10::toString(dtype));
      const auto inputs = make_inputs(shape, 2, 9, dtype);
      const std::vector<int64_t> counts = {3, 9};
      auto state = make_state(shape, 2);
      auto wanted_state = state.to(torch::kDouble);
      const auto wanted = ops::delta_rule_recurrent(widened(inputs), counts, wanted_state);
      const auto got = run_walk(place, inputs, counts, state);
      require_near(got, wanted, dtype == torch::kFloat ? 1e-5 : 0x1p-9, what);
      require_near(state, wanted_state, 1e-5, what + ", state");
      require(
          got[0].narrow(0, 3, 6).count_nonzero().item<int64_t>() == 0,
          what + ": a token that is not there has an output");
    }
  }
}

void check_tree(KernelPlace& place) {
  // Bushy and deep; and a chain beside it.
  const std::vector<std::vector<int64_t>> parents = {
      {-1, 0, 0, 1, 1, 3, 2, 0, 6, 6, 5, 10}, {-1, 0, 1, 2}};
  const auto tree = ops::make_tree_layout(parents);
  require(ops::plan_tree_walk(ops::make_tree_layout({parents[1]})).num_slots == 0, "a chain waits");
  const auto inputs = make_inputs(kNarrow, 2, tree.T, torch::kBFloat16);
  const auto state = make_state(kNarrow, 2);
  auto tree_state = state;
  const auto got = run_walk(place, inputs, tree.sizes, tree_state, &tree);
  require_same(tree_state, state, "the state before a tree");
  for (size_t b = 0; b < parents.size(); ++b) {
    const auto row = static_cast<int64_t>(b);
    for (int64_t node = 0; node < std::ssize(parents[b]); ++node) {
      std::vector<int64_t> path;
      for (int64_t i = node; i >= 0; i = parents[b][static_cast<size_t>(i)])
        path.insert(path.begin(), i);
      const auto index = torch::tensor(path, torch::kLong);
      const auto take = [&](const Tensor& x) { return x[row].index_select(0, index).unsqueeze(0); };
      auto own_state = state.narrow(0, row, 1);
      const auto along = run_walk(
          place, {take(inputs.mixed), take(inputs.decay), take(inputs.beta), inputs.shape},
          {std::ssize(path)}, own_state);
      require_same(got[row][node], along[0][-1], fmt::format("row {}, node {}", b, node));
    }
  }
}

}  // namespace

std::vector<KernelCheck> delta_rule_checks() {
  return {
      {"DeltaRuleInChunksEqualsTheDefinition", check_chunks},
      {"DeltaRuleStartsEverySpanAnew", check_spans},
      {"DeltaRuleTokenByTokenEqualsTheDefinition", check_walk},
      {"DeltaRuleGivesATreesNodeTheBitsOfItsPath", check_tree}};
}

}  // namespace draftsmith::testing
