// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "draftsmith/formats/hf_config.h"
#include "draftsmith/model/kv_cache.h"
#include "draftsmith/model/layers.h"
#include "draftsmith/model/rope.h"
#include "draftsmith/model/settings.h"

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

/// A frozen Llama or Qwen3 decoder. Rows are padded on the right only: being causal, real
/// positions never see what follows them. No gradients are recorded.
class Target {
 public:
  /// Errors: DataError for a config or weights that are not those of a supported model.
  static Target load(const TargetSettings& settings);

  void check_layer_ids(const std::vector<int64_t>& layer_ids) const {
    model::check_layer_ids(config_, layer_ids);
  }

  /// Forward of whole rows. `layer_ids` in 0 .. L-1; id l is the output of decoder layer l.
  TargetStates forward(
      const torch::Tensor& ids,  // [B, S] int64
      const std::vector<int64_t>& layer_ids) const;

  /// Forward of T further tokens of every row, appended to the cache. `row_tokens` says how many
  /// of the T belong to each row (the rest is padding); empty = all.
  TargetStates forward(
      const torch::Tensor& ids,  // [B, T] int64
      const std::vector<int64_t>& layer_ids,
      KvCache& cache,
      const std::vector<int64_t>& row_tokens = {}) const;

  KvCache make_cache(int64_t num_rows, int64_t capacity) const;

  torch::Tensor embed(const torch::Tensor& ids) const;    // [..] int64 -> [.., D]
  torch::Tensor logits(const torch::Tensor& last) const;  // [.., D] -> [.., V]

  const formats::TargetConfig& config() const { return config_; }
  const std::vector<DecoderLayer>& layers() const { return layers_; }
  const Rope& rope() const { return rope_; }
  const torch::Tensor& final_norm() const { return final_norm_; }  // [D]
  const torch::Tensor& lm_head() const { return lm_head_; }        // [V, D]
  torch::ScalarType dtype() const { return lm_head_.scalar_type(); }

 private:
  formats::TargetConfig config_;
  Rope rope_;
  torch::Tensor embedding_;  // [V, D]
  std::vector<DecoderLayer> layers_;
  torch::Tensor final_norm_;
  torch::Tensor lm_head_;  // embedding_ itself if tied
};

}  // namespace draftsmith::model
