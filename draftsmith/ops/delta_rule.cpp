// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/delta_rule.h"

#include <iterator>

#include "draftsmith/base/error.h"
#include "draftsmith/ops/checks.h"
#include "draftsmith/ops/cuda/delta_rule.h"
#include "draftsmith/ops/delta_heads.h"
#include "draftsmith/ops/kernels.h"
#include "draftsmith/ops/storage.h"

namespace draftsmith::ops {
namespace {

using torch::Tensor;

struct Walk {
  std::vector<int64_t> counts;       // [B]
  const TreeLayout* tree = nullptr;  // null: a line
  void* state = nullptr;             // changed for a line
};

Tensor walk(const DeltaInputs& inputs, const Walk& how) {
  const DenseDelta dense(inputs);
  const DeltaShape& shape = inputs.shape;
  compute_delta_walk(
      {.storage = storage_of(dense.mixed),
       .mixed = dense.mixed.const_data_ptr(),
       .decay = dense.decay.const_data_ptr(),
       .beta = dense.beta.const_data_ptr(),
       .counts = how.counts.data(),
       .order = how.tree == nullptr ? nullptr : how.tree->order.data(),
       .depths = how.tree == nullptr ? nullptr : how.tree->depths.data(),
       .B = dense.mixed.size(0),
       .T = dense.mixed.size(1),
       .Hk = shape.key_heads,
       .Hv = shape.value_heads,
       .Ek = shape.key_dim,
       .Ev = shape.value_dim,
       .state = how.state,
       .out = dense.out.data_ptr()});
  return dense.out;
}

}  // namespace

DenseDelta::DenseDelta(const DeltaInputs& inputs)
    : shape(inputs.shape),
      mixed(inputs.mixed.contiguous()),
      decay(inputs.decay.contiguous()),
      beta(inputs.beta.contiguous()),
      out(torch::zeros(
          {mixed.size(0), mixed.size(1), shape.value_heads, shape.value_dim},
          mixed.options())) {}

DeltaChunkParams DenseDelta::chunk_params(const Span* spans, int64_t num_spans, const Tensor& state)
    const {
  return {
      .storage = storage_of(mixed),
      .mixed = mixed.const_data_ptr(),
      .decay = decay.const_data_ptr(),
      .beta = beta.const_data_ptr(),
      .spans = spans,
      .num_spans = num_spans,
      .T = mixed.size(1),
      .Hk = shape.key_heads,
      .Hv = shape.value_heads,
      .Ek = shape.key_dim,
      .Ev = shape.value_dim,
      .state = state.defined() ? state.data_ptr() : nullptr,
      .out = out.data_ptr()};
}

void check_delta_inputs(const DeltaInputs& inputs, const Tensor& state) {
  const auto [B, T, C] = dims<3>(inputs.mixed, "mixed");
  const DeltaShape& shape = inputs.shape;
  const auto type = inputs.mixed.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  check_shape(inputs.mixed, {B, T, shape.width()}, "mixed");
  check_shape(inputs.decay, {B, T, shape.value_heads}, "decay");
  check_shape(inputs.beta, {B, T, shape.value_heads}, "beta");
  DS_CHECK(inputs.decay.scalar_type() == type && inputs.beta.scalar_type() == type);
  DS_CHECK(shape.value_heads % shape.key_heads == 0);
  DS_CHECK(!needs_gradient({inputs.mixed, inputs.decay, inputs.beta}));
  if (!state.defined()) return;
  check_shape(state, {B, shape.value_heads, shape.key_dim, shape.value_dim}, "delta state");
  DS_CHECK(state.scalar_type() == type && state.is_contiguous());
}

bool has_chunk_kernel(const DeltaShape& shape, torch::ScalarType dtype, torch::Device device) {
  if (device.is_cpu()) return true;
  return dtype == torch::kBFloat16 && device.is_cuda() &&
         cuda::has_delta_rule(shape.key_dim, shape.value_dim);
}

Tensor delta_rule_chunked(
    const DeltaInputs& inputs,
    const std::vector<Span>& spans,
    const Tensor& state) {
  const DeltaShape& shape = inputs.shape;
  if (!has_chunk_kernel(shape, inputs.mixed.scalar_type(), inputs.mixed.device()))
    return delta_rule_chunked_plain(inputs, spans, state);
  check_delta_inputs(inputs, state);
  const int64_t B = inputs.mixed.size(0);
  const int64_t T = inputs.mixed.size(1);
  for (const Span& span : spans)
    DS_CHECK(span.row >= 0 && span.row < B && span.begin >= 0 && span.end <= T);
  if (inputs.mixed.is_cuda()) return run_chunks_on_gpu(inputs, spans, state);
  const DenseDelta dense(inputs);
  const bool has_tiles = dense.mixed.scalar_type() == torch::kBFloat16 &&
                         has_delta_tile_chunks(shape.key_dim, shape.value_dim);
  const auto compute = has_tiles ? compute_delta_tile_chunks : compute_delta_vector_chunks;
  compute(dense.chunk_params(spans.data(), std::ssize(spans), state));
  return dense.out;
}

Tensor delta_rule_recurrent(
    const DeltaInputs& inputs,
    const std::vector<int64_t>& row_tokens,
    const Tensor& state) {
  check_delta_inputs(inputs, state);
  const int64_t B = inputs.mixed.size(0);
  DS_CHECK(state.defined() && static_cast<int64_t>(row_tokens.size()) == B);
  for (const int64_t count : row_tokens)
    DS_CHECK(count >= 0 && count <= inputs.mixed.size(1));
  if (has_gpu_walk(inputs)) return walk_on_gpu(inputs, row_tokens, state);
  if (!inputs.mixed.device().is_cpu()) {
    std::vector<Span> spans;
    for (int64_t b = 0; b < B; ++b)
      spans.push_back({b, 0, row_tokens[static_cast<size_t>(b)]});
    return delta_rule_chunked(inputs, spans, state);
  }
  return walk(inputs, {row_tokens, nullptr, state.data_ptr()});
}

Tensor delta_rule_tree(const DeltaInputs& inputs, const TreeLayout& tree, const Tensor& state) {
  check_delta_inputs(inputs, state);
  DS_CHECK(state.defined() && tree.B == inputs.mixed.size(0) && tree.T == inputs.mixed.size(1));
  if (has_gpu_walk(inputs)) return walk_tree_on_gpu(inputs, tree, state);
  if (!inputs.mixed.device().is_cpu()) return delta_rule_tree_by_ancestors(inputs, tree, state);
  return walk(inputs, {tree.sizes, &tree, state.data_ptr()});
}

}  // namespace draftsmith::ops
