// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <iterator>

#include "draftsmith/ops/cuda/delta_rule.h"
#include "draftsmith/ops/cuda/on_device.h"
#include "draftsmith/ops/delta_heads.h"
#include "draftsmith/ops/storage.h"
#include "draftsmith/ops/tree_walk.h"

namespace draftsmith::ops {
namespace {

using torch::Tensor;

/// A list of the host's on a device, read as its elements there.
template <class Number, class T>
Tensor copy_list(const std::vector<T>& list, torch::Device device) {
  static_assert(sizeof(T) % sizeof(Number) == 0);
  const auto numbers = static_cast<int64_t>(list.size() * sizeof(T) / sizeof(Number));
  const auto copy = torch::empty({numbers}, c10::CppTypeToScalarType<Number>::value);
  if (!list.empty()) std::memcpy(copy.data_ptr(), list.data(), list.size() * sizeof(T));
  return copy.to(device, /*non_blocking=*/true);
}

Tensor walk(
    const DeltaInputs& inputs,
    const std::vector<int64_t>& row_tokens,
    const Tensor& state,
    const TreeWalk& tree) {
  const DenseDelta dense(inputs);
  const DeltaShape& shape = inputs.shape;
  const auto device = dense.mixed.device();
  const cuda::OnDevice place(dense.mixed);
  const auto counts =
      copy_list<int32_t>(std::vector<int32_t>(row_tokens.begin(), row_tokens.end()), device);
  const auto steps = copy_list<int32_t>(tree.steps, device);
  const auto slots = torch::empty(
      {dense.mixed.size(0), tree.num_slots, shape.value_heads, shape.key_dim, shape.value_dim},
      state.options());
  cuda::compute_delta_walk(
      {.storage = storage_of(dense.mixed),
       .mixed = dense.mixed.const_data_ptr(),
       .decay = dense.decay.const_data_ptr<float>(),
       .beta = dense.beta.const_data_ptr<float>(),
       .counts = counts.const_data_ptr<int32_t>(),
       .B = dense.mixed.size(0),
       .T = dense.mixed.size(1),
       .Hk = shape.key_heads,
       .Hv = shape.value_heads,
       .Ek = shape.key_dim,
       .Ev = shape.value_dim,
       .state = state.data_ptr<float>(),
       .out = dense.out.data_ptr(),
       .steps = tree.steps.empty()
                    ? nullptr
                    : reinterpret_cast<const cuda::TreeStep*>(steps.const_data_ptr<int32_t>()),
       .num_slots = tree.num_slots,
       .slots = slots.data_ptr<float>()},
      place.stream());
  return dense.out;
}

}  // namespace

bool has_gpu_walk(const DeltaInputs& inputs) {
  const auto type = inputs.mixed.scalar_type();
  return inputs.mixed.is_cuda() && (type == torch::kBFloat16 || type == torch::kFloat) &&
         cuda::has_delta_rule(inputs.shape.key_dim, inputs.shape.value_dim);
}

Tensor
run_chunks_on_gpu(const DeltaInputs& inputs, const std::vector<Span>& spans, const Tensor& state) {
  const DenseDelta dense(inputs);
  const cuda::OnDevice place(dense.mixed);
  const auto list = copy_list<int64_t>(spans, dense.mixed.device());
  cuda::compute_delta_chunks(
      dense.chunk_params(
          reinterpret_cast<const Span*>(list.const_data_ptr<int64_t>()), std::ssize(spans), state),
      place.stream());
  return dense.out;
}

Tensor walk_on_gpu(
    const DeltaInputs& inputs,
    const std::vector<int64_t>& row_tokens,
    const Tensor& state) {
  return walk(inputs, row_tokens, state, {});
}

Tensor walk_tree_on_gpu(const DeltaInputs& inputs, const TreeLayout& tree, const Tensor& state) {
  return walk(inputs, tree.sizes, state, plan_tree_walk(tree));
}

}  // namespace draftsmith::ops
