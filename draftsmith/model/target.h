// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <torch/types.h>

#include "draftsmith/data/feature_store.h"
#include "draftsmith/formats/hf_config.h"
#include "draftsmith/model/delta_net.h"
#include "draftsmith/model/layers.h"
#include "draftsmith/model/rope.h"
#include "draftsmith/model/settings.h"
#include "draftsmith/model/target_cache.h"
#include "draftsmith/model/token_tree.h"

namespace draftsmith::model {

/// What a forward of the target leaves for the drafter and the head.
struct TargetStates {
  torch::Tensor features;  // [B, T, F] residual stream after the captured layers, side by side
  torch::Tensor last;      // [B, T, D] after the final norm; logits = last lm_head^T
};

/// Layer ids that may be captured for a drafter: 0 .. L-2. The last layer is refused, because
/// Hugging Face and serving engines disagree on what its output is.
/// Errors: ConfigError naming the id.
void check_layer_ids(const formats::TargetConfig& config, const std::vector<int64_t>& layer_ids);

/// A layer of a target: attention, or the linear mixer of hybrid models.
struct TargetLayer : DecoderLayer {
  std::optional<DeltaNet> delta;
};

/// A frozen Llama, Qwen3 or Qwen3.5 decoder. Rows are padded on the right only: being causal,
/// real positions never see what follows them. No gradients are recorded.
class Target {
 public:
  /// Weights stay mapped or are converted tensor by tensor; with several devices the layers are
  /// spread over them in order, by bytes.
  /// Errors: DataError for a config or weights that are not those of a supported model.
  static Target load(const TargetSettings& settings);

  /// Only embedding and head, for training from stored features. Errors: as `load`.
  static Target load_ends(
      const TargetSettings& settings,
      std::shared_ptr<const data::FeatureStore> stored);

  /// The features that stand in for the layers, or null.
  const data::FeatureStore* stored() const { return stored_.get(); }

  void check_layer_ids(const std::vector<int64_t>& layer_ids) const {
    model::check_layer_ids(config_, layer_ids);
  }

  /// Forward of whole rows. `layer_ids` in 0 .. L-1; id l is the output of decoder layer l.
  /// With document ids every document runs as if it were alone: positions, attention, short
  /// convolution and recurrent state start anew. States of padding (document -1) mean nothing.
  /// Errors: ShapeError for padding before a document.
  TargetStates forward(
      const torch::Tensor& ids,  // [B, S] int64
      const std::vector<int64_t>& layer_ids,
      const torch::Tensor& document_ids = {}) const;  // [B, S] int64, -1 = padding

  /// Forward of T further tokens of every row, appended to the cache for good. `row_tokens` says
  /// how many of the T belong to each row (the rest is padding); empty = all.
  TargetStates forward(
      const torch::Tensor& ids,  // [B, T] int64
      const std::vector<int64_t>& layer_ids,
      TargetCache& cache,
      const std::vector<int64_t>& row_tokens = {}) const;

  /// Forward of a tree of tokens below every row of the cache: node i stands at position
  /// lengths[b] + depth and sees the cached tokens, its ancestors and itself. States come in
  /// node order, [B, T, ..] with T = nodes of the largest tree. The cache keeps what it needs to
  /// `commit` a path afterwards; its capacity must hold lengths[b] + T tokens.
  ///
  /// Attention, convolution and delta rule give a node the bits that decoding its path token by
  /// token gives; so do matrix products of few rows (B T), see ops::linear.
  TargetStates verify(
      const std::vector<TokenTree>& trees,  // [B]
      const std::vector<int64_t>& layer_ids,
      TargetCache& cache) const;

  TargetCache make_cache(int64_t num_rows, int64_t capacity) const;

  torch::Tensor embed(const torch::Tensor& ids) const;    // [..] int64 -> [.., D]
  torch::Tensor logits(const torch::Tensor& last) const;  // [.., D] -> [.., V]

  const formats::TargetConfig& config() const { return config_; }
  const std::vector<TargetLayer>& layers() const { return layers_; }
  const Rope& rope() const { return rope_; }
  const torch::Tensor& final_norm() const { return final_norm_; }  // [D]
  const torch::Tensor& lm_head() const { return lm_head_; }        // [V, D]
  torch::ScalarType dtype() const { return lm_head_.scalar_type(); }

 private:
  /// Errors: ConfigError for more positions than the model was made for.
  void check_positions(int64_t count) const;

  /// The layers over embedded ids. attend(layer, queries, keys, values) gives [B, T, H, E],
  /// mix(layer, net, normed) the output of a linear layer.
  template <class Attend, class Mix>
  TargetStates run(
      const torch::Tensor& ids,
      const torch::Tensor& positions,  // [B or 1, T]
      const std::vector<int64_t>& layer_ids,
      const Attend& attend,
      const Mix& mix) const;

  /// What `load` and `load_ends` share; `is_whole` asks for the layers too.
  static Target load_parts(const TargetSettings& settings, bool is_whole);

  std::shared_ptr<const data::FeatureStore> stored_;
  formats::TargetConfig config_;
  Rope rope_;
  torch::Tensor embedding_;  // [V, D]
  std::vector<TargetLayer> layers_;
  std::vector<torch::Device> layer_devices_;  // [L]
  torch::Tensor final_norm_;
  torch::Tensor lm_head_;  // embedding_ itself if tied
};

}  // namespace draftsmith::model
