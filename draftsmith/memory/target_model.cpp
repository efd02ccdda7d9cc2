// SPDX-License-Identifier: Apache-2.0
// The bytes of a target's forward, op by op, as the code of model/target has them.
#include <algorithm>

#include "draftsmith/memory/step_parts.h"
#include "draftsmith/ops/causal_attention.h"
#include "draftsmith/ops/delta_rule.h"

namespace draftsmith::memory {
namespace {

/// Bytes of the tensors of a target's layer, for all tokens of a batch.
struct TargetSizes {
  explicit TargetSizes(const StepShape& s)
      : T(s.context_tokens),
        b(s.target_element_bytes),
        states(T * s.target.hidden_size * b),
        queries(T * s.target.num_heads * s.target.head_dim * b),
        keys(T * s.target.num_kv_heads * s.target.head_dim * b),
        mlp(T * s.target.intermediate_size * b),
        values(T * s.target.linear.num_value_heads * s.target.linear.value_head_dim * b),
        mixed(2 * T * s.target.linear.num_key_heads * s.target.linear.key_head_dim * b + values),
        gates(T * s.target.linear.num_value_heads) {}
  int64_t T, b;
  int64_t states, queries, keys, mlp;
  int64_t values, mixed;  // of a linear layer: its value heads; queries, keys and values together
  int64_t gates;          // numbers of one of its gates
};

/// Attention of a late layer, beside its input and the normed input. Leaves what lives on while the
/// MLP runs.
void attend_in_target(Ledger& ledger, const StepShape& s, const TargetSizes& z) {
  const auto& t = s.target;
  const bool has_output_gate = t.is_hybrid();
  const bool has_kernel = ops::has_causal_kernel(
      t.num_heads, t.num_kv_heads, t.head_dim, z.b == 2 ? torch::kBFloat16 : torch::kFloat,
      s.is_on_gpu ? torch::kCUDA : torch::kCPU);
  const int64_t gate = has_output_gate ? 2 * z.queries : 0;  // with the queries that it came with
  ledger.touch(kTarget, has_output_gate ? 4 * z.queries : 2 * z.queries);  // normed and rotated
  ledger.add(kTarget, gate + z.queries);
  ledger.touch(kTarget, 2 * z.keys);
  // The output, and keys and values packed, or the output of one document.
  ledger.touch(kTarget, 2 * z.keys + z.queries + (has_kernel ? 2 * z.keys : z.queries));
  ledger.add(kTarget, z.queries);
  if (has_output_gate) ledger.touch(kTarget, 2 * z.queries);  // sigmoid and product
}

/// Tensors of the delta rule by libtorch's operations, some chunks of all heads at a time.
int64_t delta_chunk_scratch(const StepShape& s, const TargetSizes& z) {
  const auto& linear = s.target.linear;
  const ops::DeltaShape shape{
      linear.num_key_heads, linear.num_value_heads, linear.key_head_dim, linear.value_head_dim};
  const auto device = s.is_on_gpu ? torch::kCUDA : torch::kCPU;
  if (ops::has_chunk_kernel(shape, z.b == 2 ? torch::kBFloat16 : torch::kFloat, device)) return 0;
  constexpr int64_t kTokens = 1024, kChunk = 64;
  const int64_t cells = std::min(z.T, kTokens) * linear.num_value_heads * kFloat;
  // Queries and keys as they are, scaled and faded; values; right side and solution; triangles.
  return cells * (8 * linear.key_head_dim + 4 * linear.value_head_dim + 4 * kChunk);
}

/// A Gated DeltaNet layer, as above.
void mix_in_target(Ledger& ledger, const StepShape& s, const TargetSizes& z) {
  // The convolution: its inputs and its outputs. On a GPU libtorch makes it of whole tensors: the
  // inputs once more, sums in float32, and twice that for what follows them.
  const int64_t cells = z.mixed / z.b;
  const int64_t composed =
      cells * (3 * kFloat + z.b) + (z.b == kFloat ? 0 : cells * (kFloat + z.b));
  ledger.touch(kTarget, z.mixed + (s.is_on_gpu ? composed : z.mixed));
  ledger.add(kTarget, z.mixed);
  ledger.touch(kTarget, z.gates * (3 * kDouble + z.b));
  ledger.add(kTarget, 2 * z.gates * kFloat);
  ledger.touch(kTarget, z.values + delta_chunk_scratch(s, z));
  ledger.touch(kTarget, 3 * z.values + z.states);  // heads, what gates them, and their norm
  ledger.drop(kTarget, z.mixed + 2 * z.gates * kFloat);
}

/// The layers of a target while a late one runs, beside what was captured before.
void run_target_layers(Ledger& ledger, const StepShape& s) {
  const auto& t = s.target;
  const TargetSizes z(s);
  const auto play = [&](const auto& mix) {
    Ledger layer;
    layer.add(kTarget, 2 * z.states);  // its input, and that normed
    mix(layer);
    // The mixer's output, the sum, its norm, what the MLP gives, and the next sum.
    layer.touch(kTarget, 5 * z.states + 3 * z.mlp);
    ledger.touch(kTarget, layer.peak());
  };
  const auto linear = std::count(t.is_linear.begin(), t.is_linear.end(), true);
  if (linear < t.num_layers)
    play([&](Ledger& layer) { attend_in_target(layer, s, z); });
  if (linear > 0) play([&](Ledger& layer) { mix_in_target(layer, s, z); });
}

}  // namespace

int64_t count_target_parameters(const formats::TargetConfig& config) {
  return sum_numel(model::list_target_weights(config));
}

int64_t count_loaded_parameters(const StepShape& s) {
  auto specs = model::list_target_weights(s.target);
  if (s.has_stored_features)
    std::erase_if(specs, [&](const model::WeightSpec& spec) {
      return spec.layer >= 0 && spec.layer < s.target.num_layers;
    });
  return sum_numel(specs);
}

void add_target_forward(Ledger& ledger, const StepShape& s) {
  const auto& t = s.target;
  const int64_t T = s.context_tokens, b = s.target_element_bytes;
  const int64_t states = T * t.hidden_size * b;
  const auto& ids = s.drafter.target_layer_ids;
  const auto captured = static_cast<int64_t>(ids.size());
  const int64_t embedded =
      s.rows() * (s.drafter.hidden_size * s.element_bytes + 4 * kLong + kFloat);
  if (!s.shares_target) {
    ledger.add(kFeatures, (captured + 1) * states / b * s.element_bytes + embedded);
    return;
  }
  if (s.has_stored_features) {
    constexpr int64_t kStored = 2;  // bfloat16
    const int64_t width = (captured + 1) * t.hidden_size;
    ledger.add(kFeatures, T * width * kStored);
    ledger.touch(kTarget, s.unpacked_tokens * width * (2 * kFloat + kStored));
    if (s.element_bytes != kStored) {
      ledger.add(kFeatures, T * width * s.element_bytes);
      ledger.drop(kFeatures, T * width * kStored);
    }
    ledger.add(kFeatures, embedded);
    return;
  }
  const int64_t angles = T * t.rotary_dim * b;
  ledger.add(kTarget, captured * states + angles);
  if (t.num_layers > 0) {
    // The last layer's input is one of the captured states if these go as far as they may.
    const bool is_captured = captured > 0 && ids.back() >= t.num_layers - 2;
    ledger.drop(kTarget, is_captured ? states : 0);
    run_target_layers(ledger, s);
    ledger.add(kTarget, is_captured ? states : 0);
  }
  // The captured states become one tensor.
  ledger.add(kTarget, states);
  ledger.add(kFeatures, captured * states);
  ledger.drop(kTarget, captured * states);
  ledger.add(kFeatures, states);
  ledger.drop(kTarget, states + angles);
  if (s.element_bytes != b) {
    const int64_t converted = (captured + 1) * states / b * s.element_bytes;
    ledger.add(kFeatures, converted);
    ledger.drop(kFeatures, (captured + 1) * states);
  }
  ledger.add(kFeatures, embedded);
}

double count_target_flops(const StepShape& s) {
  if (s.has_stored_features) return 0;
  std::vector<model::WeightSpec> matrices;
  for (auto& spec : model::list_target_weights(s.target)) {
    const bool is_in_a_layer = spec.layer >= 0 && spec.layer < s.target.num_layers;
    if (spec.kind == model::WeightKind::kMatrix && is_in_a_layer)
      matrices.push_back(std::move(spec));
  }
  return 2 * static_cast<double>(sum_numel(matrices)) * static_cast<double>(s.context_tokens);
}

}  // namespace draftsmith::memory
