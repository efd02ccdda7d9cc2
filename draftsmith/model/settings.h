// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "draftsmith/base/fields.h"
#include "draftsmith/ops/block_attention.h"

namespace draftsmith::model {

struct TargetSettings {
  std::string path;
  std::string dtype = "bfloat16";
  std::string device = "cpu";
  std::vector<std::string> devices;  // one target split by layers; empty = `device` alone
};

struct DrafterSettings {
  std::string init = "random";
  int64_t num_layers = 5;
  int64_t block_size = 16;
  std::vector<int64_t> target_layer_ids;  // empty = from the formula
  int64_t mask_token_id = -1;             // -1 = chosen from the tokenizer
  std::vector<std::string> layer_types;   // empty = all full_attention
  int64_t sliding_window = 2048;          // tokens
  std::optional<bool> is_causal;
  std::string dtype = "bfloat16";
  int64_t num_attention_heads = 0;  // 0 = the target's, here and below
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t intermediate_size = 0;
};

struct AttentionSettings {
  std::string method = "block";
  bool allow_math = false;
};

void add_fields(FieldList& fields, TargetSettings& settings);
void add_fields(FieldList& fields, DrafterSettings& settings);
void add_fields(FieldList& fields, AttentionSettings& settings);

/// "block", "gather" or "dense" (settings allow nothing else).
ops::AttentionMethod parse_attention_method(const std::string& name);

/// "float32" or "bfloat16" (settings allow nothing else).
torch::ScalarType parse_dtype(const std::string& name);
std::string dtype_name(torch::ScalarType dtype);

/// "cpu" or "cuda:N". Errors: DeviceError, naming the setting, for a device that is not there.
torch::Device parse_device(const std::string& name, const std::string& key);

}  // namespace draftsmith::model
