// SPDX-License-Identifier: Apache-2.0
// The bytes of a step, op by op, as the code of model/drafter, ops and train/step has them.
#include "draftsmith/memory/step_model.h"

#include <algorithm>

#include "draftsmith/memory/step_parts.h"
#include "draftsmith/model/weights.h"
#include "draftsmith/ops/block_methods.h"

namespace draftsmith::memory {
namespace {

constexpr int64_t kScaledRows = 2048;  // of the head's gradient at a time
constexpr const char* kContext = "context keys and values";
constexpr const char* kAttention = "attention activations";
constexpr const char* kMlp = "MLP activations";
constexpr const char* kHead = "head: logits and gradient";
constexpr const char* kGradients = "gradients of the step";
constexpr const char* kBackward = "backward: passing gradients";

/// Of the layer that sees most; 0 = all context.
int64_t widest_window(const formats::DrafterConfig& drafter) {
  const auto& sliding = drafter.is_sliding;
  const bool has_full = std::find(sliding.begin(), sliding.end(), false) != sliding.end();
  return has_full || sliding.empty() ? 0 : drafter.sliding_window;
}

/// Of the attention tiles of all layers.
ops::TileRule::Bounds bound_tiles(const StepShape& s) {
  const ops::TileRule rule{s.drafter.block_size, s.drafter.num_heads / s.drafter.num_kv_heads};
  return rule.bound(s.blocks, s.context_tokens, widest_window(s.drafter));
}

/// Bytes of tensors, by the letters of docs/notation.md.
struct Sizes {
  explicit Sizes(const StepShape& shape)
      : s(shape),
        R(s.rows()),
        T(s.context_tokens),
        b(s.element_bytes),
        D(s.drafter.hidden_size),
        I(s.drafter.intermediate_size),
        C(s.drafter.num_heads * s.drafter.head_dim),
        Gd(s.drafter.num_kv_heads * s.drafter.head_dim),
        H(s.drafter.num_heads),
        G(s.drafter.num_kv_heads),
        E(s.drafter.head_dim),
        tiles(bound_tiles(s)) {}
  const StepShape& s;
  int64_t R, T, b, D, I, C, Gd, H, G, E;
  ops::TileRule::Bounds tiles;

  int64_t states() const { return R * D * b; }
  int64_t mlp() const { return R * I * b; }
  int64_t queries() const { return R * C * b; }
  int64_t block_keys() const { return R * Gd * b; }
  int64_t context_keys() const { return T * Gd * b; }
  int64_t context() const { return T * D * b; }

  /// Context keys before the norm and rotated, the norm's scales, and values.
  int64_t saved_context() const { return 3 * context_keys() + T * G * kDouble; }
  /// Normed input, queries and keys before and after, values, output, scales, and what the method
  /// keeps beside its output.
  int64_t saved_attention() const {
    return states() + 2 * queries() + 3 * block_keys() + queries() + R * (H + G + 1) * kDouble +
           saved_by_method();
  }
  int64_t saved_by_method() const {
    if (s.attention == ops::AttentionMethod::kGather) return 0;
    if (s.attention == ops::AttentionMethod::kDense)
      // Weights as softmax leaves them and as they are multiplied, the mask; heads side by side.
      return dense_cells() * (kFloat + b) + R * (T + R) + queries() + 2 * (T + R) * Gd * b;
    return R * H * (s.is_on_gpu ? kFloat : kDouble);  // log sums
  }
  /// Sum before the MLP, its norm, gate, up and their product.
  int64_t saved_mlp() const { return 2 * states() + 3 * mlp() + R * kDouble; }

  /// Features projected and normed, the norm's scales, and the angles of all positions.
  int64_t projected() const { return 2 * context() + T * kDouble + (T + R) * E * b; }

  int64_t supervised() const { return s.supervised_rows(); }
  /// Of the states that the head sees, kept for backward.
  int64_t head_gradient() const { return supervised() * D * b; }
  /// What the head says about each row, the best ids for trees among it.
  int64_t row_terms() const {
    return R * (9 * kFloat + 3 * kLong + s.tree_budget * (kLong + kFloat));
  }
  /// Of logits at a time; beside kFused the teacher's are not counted.
  int64_t head_rows() const {
    if (s.loss == ops::LossMethod::kFull) return supervised();
    const bool counts_teacher = s.has_teacher && s.loss == ops::LossMethod::kFused;
    return std::min(s.chunk_rows, supervised() * (counts_teacher ? 2 : 1));
  }
  int64_t head_chunk() const {
    const int64_t V = s.drafter.vocab_size, r = head_rows();
    if (s.loss == ops::LossMethod::kFused)
      return r * ((V + 3 * D) * b + s.tree_budget * (kLong + kDouble));
    return r * (V * composed_logit() + 3 * D * b);
  }
  /// Of one logit by libtorch's operations: what they make of the student's, then of the teacher's, and
  /// the sorted ids of trees.
  int64_t composed_logit() const {
    const int64_t narrow = b == kFloat ? 0 : b;
    const int64_t student = narrow + 4 * kFloat, teacher = narrow + 4 * kFloat;
    const int64_t sorted = s.tree_budget > 0 ? 2 * (kFloat + kLong) : 0;
    return student + (s.has_teacher ? teacher : 0) + sorted;
  }
  /// Kept for backward where the logits of all rows are: logarithms and probabilities.
  int64_t kept_logits() const {
    if (s.loss != ops::LossMethod::kFull) return 0;
    return supervised() * s.drafter.vocab_size * (s.has_teacher ? 3 : 2) * kFloat;
  }

  /// Query heads times what a dense mask shows them.
  int64_t dense_cells() const { return H * R * (T + R); }

  /// Scores while they become weights, and the mask while it is made; backward takes less.
  int64_t dense_scratch() const {
    const int64_t narrow = b == kFloat ? 0 : kFloat;
    return dense_cells() * (kFloat + narrow) + 6 * R * (T + R) + 2 * (T + R) * Gd * b;
  }

  /// The keys, values and mask of some blocks at a time.
  int64_t gather_scratch(bool is_backward) const {
    const int64_t n = std::min(s.blocks, ops::kGatheredBlocks), K = s.drafter.block_size;
    const int64_t window = widest_window(s.drafter);
    const int64_t L = window > 0 ? std::min(T, window) : T, cells = n * K * (L + K);
    const int64_t keys = 2 * n * (L + K) * Gd * b, heads = n * K * C * b;
    const int64_t mask = cells + H / G * cells * (1 + b) + n * L * kLong;
    if (!is_backward) return keys + keys / 2 + 4 * heads + mask;
    const int64_t sums = (R * C + 2 * (T + R) * Gd) * kFloat;
    return sums + 2 * keys + 4 * heads + mask;  // the keys, and their gradients
  }

  /// While attention runs forward or backward; of kBlock one head's tiles on every thread.
  int64_t attention_scratch(int64_t threads, bool is_backward) const {
    if (s.attention == ops::AttentionMethod::kDense) return dense_scratch();
    if (s.attention == ops::AttentionMethod::kGather) return gather_scratch(is_backward);
    if (s.is_on_gpu) return is_backward ? R * H * kFloat : 0;  // tiles are in shared memory
    const int64_t queries = R * (H / G);
    const int64_t packed = G == 1 ? 0 : queries * E * b;  // all heads are no copy
    int64_t bytes = packed + tiles.cells * b + 2 * tiles.held_rows * E * b;
    if (is_backward) {
      // First the output's gradient times the output, in float32; then the sums of key and value
      // gradients, and those of a tile before they are added.
      const int64_t widened = b == kFloat ? 0 : queries * E * kFloat;
      const int64_t product = widened + packed + queries * E * kFloat;
      const int64_t sums = 2 * tiles.held_rows * E * kFloat + tiles.columns * E * b;
      bytes =
          packed + std::max(packed + product, queries * kDouble + bytes + tiles.cells * b + sums);
    }
    return std::min(threads, G) * bytes;
  }
};

void forward_layer(Ledger& ledger, const Sizes& z, const StepShape& s) {
  ledger.add(kContext, z.saved_context());
  ledger.add(kAttention, z.saved_attention());
  ledger.touch(kAttention, z.attention_scratch(s.threads, false));
  ledger.touch(kAttention, z.states());
  ledger.add(kMlp, z.saved_mlp());
  ledger.touch(kMlp, z.states());
}

/// Leaves out what the layer's own backward has let go. The last layer's comes first.
void backward_layer(Ledger& ledger, const Sizes& z, const StepShape& s, bool is_last) {
  const int64_t b = z.b;
  // MLP: the product's gradient, then gate's and up's.
  ledger.add(kBackward, z.mlp());
  ledger.add(kGradients, z.D * z.I * b);
  ledger.drop(kMlp, z.mlp());  // the product
  ledger.add(kBackward, 2 * z.mlp());
  ledger.drop(kBackward, z.mlp());
  ledger.drop(kMlp, 2 * z.mlp());  // gate and up
  ledger.add(kBackward, z.states());
  ledger.add(kGradients, z.D * z.I * b);
  ledger.drop(kBackward, z.mlp());
  ledger.add(kBackward, z.states());
  ledger.add(kGradients, z.D * z.I * b);
  ledger.drop(kBackward, z.mlp() + z.states());
  ledger.drop(kMlp, z.states());        // normed
  ledger.touch(kBackward, z.states());  // the norm's gradient joins the residual's
  ledger.drop(kBackward, z.states());
  ledger.drop(kMlp, z.states() + z.R * kDouble);
  // Attention.
  ledger.add(kBackward, z.queries());
  ledger.add(kGradients, z.D * z.C * b);
  const int64_t key_gradients = 2 * z.context_keys() + 2 * z.block_keys();
  ledger.add(kBackward, z.queries() + key_gradients);
  ledger.touch(kBackward, z.attention_scratch(s.threads, true));
  ledger.drop(kBackward, z.queries());
  ledger.drop(kAttention, 2 * z.queries() + 2 * z.block_keys() + z.saved_by_method());
  ledger.drop(kContext, 2 * z.context_keys());
  ledger.touch(kBackward, z.states() + z.queries());
  ledger.add(kGradients, (z.D * z.C + 2 * z.D * z.Gd) * b);
  ledger.drop(kBackward, z.queries() + key_gradients);
  if (is_last) ledger.add(kBackward, z.context());  // that of the context, summed over layers
  // Those of keys and values are summed in the layer, then over layers.
  ledger.touch(kBackward, (is_last ? 1 : 2) * z.context());
  ledger.drop(
      kAttention, z.states() + z.queries() + z.block_keys() + z.R * (z.H + z.G + 1) * kDouble);
  ledger.drop(kContext, z.context_keys() + z.T * z.G * kDouble);
}

}  // namespace

int64_t sum_numel(const std::vector<model::WeightSpec>& specs) {
  int64_t count = 0;
  for (const auto& spec : specs) {
    int64_t numel = 1;
    for (const int64_t size : spec.shape)
      numel *= size;
    count += numel;
  }
  return count;
}

int64_t count_drafter_parameters(const formats::DrafterConfig& config) {
  return sum_numel(model::list_drafter_weights(config));
}

void add_state(Ledger& ledger, const StepShape& s) {
  const int64_t P = count_drafter_parameters(s.drafter);
  ledger.add("weights", P * s.element_bytes);
  const int64_t own = (P + s.optimizer_shards - 1) / s.optimizer_shards;
  if (s.master_bytes() > 0) ledger.add("float32 masters", own * s.master_bytes());
  ledger.add("gradient sums", P * kFloat);
  ledger.add("moments", 2 * own * kFloat);
  if (s.has_target_copy)
    ledger.add("target weights", count_loaded_parameters(s) * s.target_element_bytes);
  if (s.element_bytes != s.target_element_bytes || !s.shares_target)
    ledger.add(
        "the drafter's own lm_head", s.target.vocab_size * s.target.hidden_size * s.element_bytes);
}

void add_other_drafters(Ledger& ledger, const StepShape& s) {
  if (s.drafters == 1) return;
  StepShape drafter = s;
  drafter.has_target_copy = false;
  Ledger state, step;
  add_state(state, drafter);
  add_target_forward(step, drafter);
  add_drafter_step(step, drafter);
  ledger.add("further drafters", (s.drafters - 1) * (state.live() + step.peak()));
}

void add_batches_ahead(Ledger& ledger, const StepShape& s) {
  Ledger forward;
  add_target_forward(forward, s);
  ledger.add("batches that wait for the drafter", s.waiting_batches * forward.live());
  ledger.add("targets at work beside the drafter", s.target_workers * forward.peak());
}

void add_evaluation(Ledger& ledger, const StepShape& s) {
  StepShape evaluated = s;  // blocks attend by tiles where they can
  if (s.attention == ops::AttentionMethod::kDense)
    evaluated.attention = ops::AttentionMethod::kBlock;
  const Sizes z(evaluated);
  const int64_t angles = (z.T + z.R) * z.E * z.b;
  ledger.touch(kContext, 2 * z.context());
  ledger.add(kContext, z.context() + angles);
  // A layer: its input, that normed, and what attention takes and gives, which outlive it.
  const int64_t kept = 2 * z.states() + z.queries() + 2 * z.block_keys();
  ledger.add(kAttention, kept);
  ledger.add(kContext, 2 * z.context_keys());
  ledger.add(kAttention, z.queries());
  ledger.touch(kAttention, z.saved_by_method() + z.attention_scratch(s.threads, false));
  ledger.drop(kContext, 2 * z.context_keys());
  ledger.touch(kMlp, 5 * z.states() + 3 * z.mlp());
  ledger.drop(kAttention, kept + z.queries());
  ledger.drop(kContext, z.context() + angles);
  // The head, beside the last states.
  ledger.add(kAttention, z.states());
  ledger.add(kHead, z.row_terms());
  ledger.touch(kHead, z.head_chunk());
}

void add_drafter_step(Ledger& ledger, const StepShape& s) {
  add_drafter_forward(ledger, s);
  add_head(ledger, s);
  add_drafter_backward(ledger, s);
}

void add_drafter_forward(Ledger& ledger, const StepShape& s) {
  const Sizes z(s);
  ledger.add(kContext, z.projected());
  for (int64_t i = 0; i < s.drafter.num_layers; ++i) {
    if (s.recomputes_layers) {
      Ledger layer;
      forward_layer(layer, z, s);
      ledger.touch("layer computed again", layer.peak());
    } else {
      forward_layer(ledger, z, s);
    }
    ledger.add(kAttention, z.states());  // the layer's output, kept for the next norm
  }
  ledger.add(kAttention, z.states() + z.R * kDouble);  // after the final norm
}

void add_head(Ledger& ledger, const StepShape& s) {
  const Sizes z(s);
  ledger.add(kHead, z.head_gradient() + z.row_terms());
  ledger.touch(kHead, z.head_chunk());
  ledger.add(kHead, z.kept_logits());
}

void add_drafter_backward(Ledger& ledger, const StepShape& s) {
  const Sizes z(s);
  const int64_t b = z.b;
  const auto F = static_cast<int64_t>(s.drafter.target_layer_ids.size()) * s.drafter.hidden_size;
  const int64_t L = s.drafter.num_layers;
  // The terms of the rows live as long as the micro-step.
  ledger.add(kBackward, z.states());
  ledger.touch(kBackward, std::min(kScaledRows, z.supervised()) * z.D * (kFloat + b));
  if (s.loss != ops::LossMethod::kFused) ledger.touch(kHead, z.head_chunk() - z.kept_logits());
  ledger.drop(kHead, z.head_gradient() + z.kept_logits());
  ledger.touch(kBackward, z.states());  // final norm
  ledger.drop(kAttention, z.R * kDouble);
  for (int64_t i = 0; i < L; ++i) {
    ledger.drop(kAttention, z.states());
    if (!s.recomputes_layers) {
      backward_layer(ledger, z, s, i == 0);
      continue;
    }
    // Its output, and the output's gradient, which the whole backward of the layer holds.
    ledger.add("layer computed again", 2 * z.states());
    forward_layer(ledger, z, s);
    backward_layer(ledger, z, s, i == 0);
    ledger.drop("layer computed again", 2 * z.states());
  }
  ledger.drop(kContext, z.projected());
  ledger.drop(kBackward, z.states());
  ledger.touch(kBackward, z.context());
  ledger.drop(kBackward, z.context());
  ledger.add(kGradients, z.D * F * b);
  const int64_t rest = L * (2 * z.D + 2 * z.E) * b + 2 * z.D * b;
  ledger.add(kGradients, rest);
  ledger.drop(
      kGradients, L * (3 * z.D * z.I + 2 * z.D * z.C + 2 * z.D * z.Gd) * b + z.D * F * b + rest);
  ledger.drop(kAttention, z.states());  // the hidden states of the micro-step
  ledger.drop(kHead, z.row_terms());
  const auto captured = static_cast<int64_t>(s.drafter.target_layer_ids.size());
  ledger.drop(
      kFeatures,
      (captured + 1) * z.context() + z.R * (s.drafter.hidden_size * b + 4 * kLong + kFloat));
}

double count_step_flops(const StepShape& s) {
  const Sizes z(s);
  const auto R = static_cast<double>(z.R), T = static_cast<double>(z.T);
  const auto D = static_cast<double>(z.D);
  const double layer_rows = D * static_cast<double>(2 * z.C + 2 * z.Gd + 3 * z.I) * R;
  const double layer_context = D * static_cast<double>(2 * z.Gd) * T;
  const double fc = D * D * static_cast<double>(s.drafter.target_layer_ids.size()) * T;
  const double forward =
      2 * (static_cast<double>(s.drafter.num_layers) * (layer_rows + layer_context) + fc);
  const double head = 2 * D * static_cast<double>(s.drafter.vocab_size) *
                      static_cast<double>(s.blocks * (s.drafter.block_size - 1));
  const double again = s.recomputes_layers ? forward : 0;
  const double head_again =
      s.loss == ops::LossMethod::kRecompute ? (s.has_teacher ? 2 : 1) * head : 0;
  return 3 * forward + again + (s.has_teacher ? 3 : 2) * head + head_again;
}

}  // namespace draftsmith::memory
