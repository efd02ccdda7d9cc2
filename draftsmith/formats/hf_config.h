// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace draftsmith::formats {

/// How positions become rotary angles. Only the fields of the type are used.
struct RopeSettings {
  std::string type = "default";  // default, linear, llama3 or yarn
  double theta = 10000;
  double factor = 1;                       // linear, llama3, yarn
  double low_freq_factor = 1;              // llama3
  double high_freq_factor = 4;             // llama3
  int64_t original_max_position = 0;       // llama3, yarn; tokens
  double beta_fast = 32;                   // yarn
  double beta_slow = 1;                    // yarn
  std::optional<double> attention_factor;  // yarn; absent = 0.1 ln(factor) + 1
};

/// The sizes that Llama, Qwen3 and the drafter share.
struct TransformerConfig {
  std::string model_type;  // llama, qwen3 or qwen3_5_text
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  double rms_norm_eps = 1e-6;
  RopeSettings rope;
  bool has_attention_bias = false;
  bool has_mlp_bias = false;
  bool has_tied_head = false;
  int64_t max_position_embeddings = 0;  // tokens; 0 = not stated
  std::vector<int64_t> eos_token_ids;   // of config.json
};

/// Sizes of the Gated DeltaNet layers of a hybrid target.
struct LinearAttentionConfig {
  int64_t num_key_heads = 0;
  int64_t num_value_heads = 0;
  int64_t key_head_dim = 0;
  int64_t value_head_dim = 0;
  int64_t conv_taps = 0;  // tokens that the short convolution sees, the current one included
};

struct TargetConfig : TransformerConfig {
  int64_t rotary_dim = 0;              // the first elements of a head that rotate
  std::vector<bool> is_linear;         // one per layer: Gated DeltaNet instead of attention
  LinearAttentionConfig linear;        // of those layers
  std::string weight_prefix = "model.";  // "model.language_model." in multimodal checkpoints

  /// Qwen3.5 and 3.6: linear layers, gated attention, norms that multiply by 1 + weight.
  bool is_hybrid() const { return model_type == "qwen3_5_text"; }
  bool has_qk_norm() const { return model_type != "llama"; }
};

/// A DFlash drafter: five or so Qwen3 layers and what a draft block needs to know.
struct DrafterConfig : TransformerConfig {
  int64_t block_size = 0;  // K
  int64_t mask_token_id = 0;
  std::vector<int64_t> target_layer_ids;  // distinct, ascending; id l = output of layer l
  int64_t num_target_layers = 0;          // 0 = not stated
  std::vector<bool> is_sliding;           // one per layer
  int64_t sliding_window = 0;             // tokens, the current one included
  std::optional<bool> is_causal;          // absent: sliding layers are causal in the block
  double initializer_range = 0.02;

  bool has_sliding_layers() const;
  /// Whether the slots of a block in this layer see only slots before them.
  bool is_causal_block(int64_t layer) const;
};

/// Reads config.json of a Llama, Qwen3 or Qwen3.5 folder; the decoder's keys stand in
/// `text_config` or at the top level. Rope settings are read from `rope_parameters`
/// (transformers 5) or `rope_theta` and `rope_scaling` (transformers 4).
/// Errors: DataError for a missing key, an unknown model type or rope type.
TargetConfig read_target_config(const std::filesystem::path& folder);

/// Reads config.json of a drafter in any layout of `read_drafter_json`.
/// Errors: DataError naming the key if block_size, mask_token_id, target_layer_ids, layer_types,
/// sliding_window (with sliding layers), rope theta, head_dim or rms_norm_eps is missing.
DrafterConfig read_drafter_config(const std::filesystem::path& folder);

/// Token ids that end an answer: `eos_token_id` of generation_config.json, else of config.json.
std::vector<int64_t> read_stop_token_ids(const std::filesystem::path& folder);

/// Layers whose output a new drafter sees: round(1 + j (L - 4) / (n - 1)) with ties to even.
/// Source: build_target_layer_ids of z-lab/dflash. Errors: ConfigError if the formula gives ids
/// that repeat or leave 0 .. L-2, as it does for small targets.
std::vector<int64_t> choose_target_layer_ids(int64_t num_target_layers, int64_t count);

}  // namespace draftsmith::formats
