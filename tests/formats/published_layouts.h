// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "draftsmith/formats/json.h"

namespace draftsmith::testing {

/// A drafter's config in z-lab's layout as speculators' `save_pretrained` writes it.
inline formats::Json as_speculators(const formats::Json& zlab) {
  formats::Json layers = zlab;
  for (const char* key :
       {"architectures", "auto_map", "block_size", "dflash_config", "num_target_layers"})
    layers.erase(key);
  formats::Json ids = formats::Json::array();
  for (const auto& id : zlab.at("dflash_config").at("target_layer_ids"))
    ids.push_back(id.get<int64_t>() + 1);
  return {
      {"architectures", {"DFlashDraftModel"}},
      {"speculators_model_type", "dflash"},
      {"block_size", zlab.at("block_size")},
      {"mask_token_id", zlab.at("dflash_config").at("mask_token_id")},
      {"aux_hidden_state_layer_ids", ids},
      {"draft_vocab_size", zlab.at("vocab_size")},
      {"target_hidden_size", formats::Json()},
      {"sliding_window_non_causal", false},
      {"sample_from_anchor", false},
      {"transformer_layer_config", layers}};
}

/// The same as TorchSpec's flat config, which has only full layers and hidden / heads wide heads.
inline formats::Json as_torchspec(const formats::Json& zlab) {
  const formats::Json& inner = zlab.at("dflash_config");
  formats::Json json = {
      {"architectures", {"DFlashDraftModel"}},
      {"model_type", "dflash"},
      {"block_size", zlab.at("block_size")},
      {"mask_token_id", inner.at("mask_token_id")},
      {"target_layer_ids", inner.at("target_layer_ids")},
      {"num_target_layers", inner.at("target_layer_ids").size()},
      {"target_num_hidden_layers", zlab.at("num_target_layers")},
      {"target_hidden_size", zlab.at("hidden_size")},
      {"rope_theta", zlab.at("rope_parameters").at("rope_theta")}};
  for (const char* key :
       {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "vocab_size", "rms_norm_eps", "max_position_embeddings"})
    json[key] = zlab.at(key);
  return json;
}

}  // namespace draftsmith::testing
