// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "draftsmith/data/draft_blocks.h"
#include "draftsmith/formats/hf_config.h"
#include "draftsmith/model/kv_cache.h"
#include "draftsmith/model/layers.h"
#include "draftsmith/model/rope.h"

namespace draftsmith::model {

/// How the training forward is computed; the result is the same.
struct ForwardPlan {
  ops::AttentionMethod attention = ops::AttentionMethod::kBlock;
  /// Layers keep their input only, and backward computes them again.
  bool recomputes_layers = false;
};

/// All that a forward is told of the places of its blocks, on the drafter's device but for the
/// layout's own tensors.
struct BlockPlaces {
  ops::BlockLayout layout;  // with plans where attention needs them
  ops::RotaryAngles context_angles, block_angles;
};

/// A DFlash drafter: projects the target's features once and injects them as extra keys and
/// values into every layer; the queries are the slots of draft blocks.
class Drafter {
 public:
  /// Takes the tensors of `list_drafter_weights(config)`; they are shared, not copied.
  Drafter(formats::DrafterConfig config, WeightMap weights);

  /// Reads a folder with config.json and weights; parameters are copied from the file.
  static Drafter load(const std::filesystem::path& folder, torch::ScalarType dtype);

  /// Writes config.json and model.safetensors in `dtype`.
  void save(const std::filesystem::path& folder, torch::ScalarType dtype) const;

  /// One with copies of the parameters.
  Drafter copy_to(torch::Device device) const;

  /// Final-normed states of all slots of all blocks; logits = states x the target's lm_head^T.
  /// Gradient: to every parameter.
  torch::Tensor forward(              // [B, N K, D]
      const torch::Tensor& embedded,  // [B, N K, D] target embeddings of the block ids
      const torch::Tensor& features,  // [B, S, F]
      const data::DraftBlocks& blocks,
      const ForwardPlan& plan = {}) const;

  /// The forward in two parts: what the host decides about the blocks, and what is computed. Places
  /// of equally many tokens and blocks have tensors of the same shapes if `has_fixed_sizes`.
  BlockPlaces place_blocks(
      const data::DraftBlocks& blocks,
      ops::AttentionMethod attention,
      bool has_fixed_sizes) const;
  torch::Tensor forward(
      const torch::Tensor& embedded,
      const torch::Tensor& features,
      const BlockPlaces& places,
      const ForwardPlan& plan = {}) const;

  /// Decoding: projects features of the next context positions into the cache, the first
  /// row_tokens[b] of row b; empty = all.
  void append_context(
      KvCache& cache,
      const torch::Tensor& features,  // [B, T, F]
      const std::vector<int64_t>& row_tokens = {}) const;

  /// Decoding: states of one block per row, whose anchor is the position after the row's context.
  /// The block's own keys stand beyond the context, where the next tokens overwrite them.
  torch::Tensor draft(                // [B, K, D]
      const torch::Tensor& embedded,  // [B, K, D]
      KvCache& cache) const;

  /// For `capacity` tokens of context a row, and a block after them.
  KvCache make_cache(int64_t num_rows, int64_t capacity) const;

  const formats::DrafterConfig& config() const { return config_; }
  torch::ScalarType dtype() const { return fc_.weight.scalar_type(); }
  torch::Device device() const { return fc_.weight.device(); }
  data::BlockRule block_rule(double decay_gamma) const {
    return {config_.block_size, config_.mask_token_id, decay_gamma};
  }

  /// Parameters in the order of the checkpoint. Writing to them changes the drafter.
  const std::vector<std::pair<std::string, torch::Tensor>>& parameters() const {
    return parameters_;
  }
  int64_t num_parameters() const;

 private:
  friend struct RecomputedLayer;

  torch::Tensor project_features(const torch::Tensor& features) const;  // [B, S, F] -> [B, S, D]
  /// attend(queries, keys, values) of the block's slots gives [B, N K, H, E].
  template <class Attend>
  torch::Tensor run_layer(
      size_t index,
      const torch::Tensor& hidden,
      const ops::RotaryAngles& block_angles,
      const Attend& attend) const;
  /// A layer of the training forward, from the projected features `context` [B, S, D].
  torch::Tensor run_training_layer(
      size_t index,
      const torch::Tensor& hidden,
      const torch::Tensor& context,
      const BlockPlaces& places,
      ops::AttentionMethod attention) const;
  ops::BlockVisibility visibility(size_t layer) const;
  std::vector<ops::BlockVisibility> list_visibilities() const;  // each once
  ops::RotaryAngles angles(const torch::Tensor& positions) const;

  formats::DrafterConfig config_;
  Rope rope_;
  std::vector<std::pair<std::string, torch::Tensor>> parameters_;
  Linear fc_;
  torch::Tensor hidden_norm_;  // [D]
  std::vector<DecoderLayer> layers_;
  torch::Tensor norm_;  // [D]
};

}  // namespace draftsmith::model
