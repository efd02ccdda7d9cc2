// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/model/settings.h"

#include <fmt/format.h>

#include "draftsmith/base/error.h"
#include "draftsmith/ops/cuda/devices.h"

namespace draftsmith::model {

void add_fields(FieldList& fields, TargetSettings& settings) {
  fields.begin_section("target");
  fields.add(
      "path", settings.path, "target model: a Hugging Face folder (Llama, Qwen3 or Qwen3.5/3.6)");
  fields.add_choice("dtype", settings.dtype, {"bfloat16", "float32"}, "arithmetic of the target");
  fields.add("device", settings.device, "where the target runs: cpu, or cuda:0 and so on");
  fields.add(
      "devices", settings.devices,
      "devices that share the target by layers, first layers first; empty = target.device alone");
}

void add_fields(FieldList& fields, DrafterSettings& settings) {
  fields.begin_section("drafter");
  fields.add(
      "init", settings.init,
      "where weights start: random; target (layers, norms and final norm of the target's last "
      "layers); or a drafter folder, a checkpoint or a run folder (its newest checkpoint), whose "
      "config.json then decides all sizes below");
  fields.add("num_layers", settings.num_layers, "decoder layers", {1, 1000});
  fields.add(
      "block_size", settings.block_size, "tokens of a block, the anchor included", {2, 4096});
  fields.add(
      "target_layer_ids", settings.target_layer_ids,
      "target layers whose output the drafter sees, the first is 0; empty = as many as the drafter "
      "has layers, spread evenly from layer 1 to the third from the end");
  fields.add(
      "mask_token_id", settings.mask_token_id,
      "id that stands for a token to predict; -1 = the tokenizer's mask token or a spare row");
  fields.add(
      "layer_types", settings.layer_types,
      "full_attention or sliding_attention for each layer; empty = all full_attention");
  fields.add(
      "sliding_window", settings.sliding_window, "tokens a sliding layer looks back", kAtLeastOne);
  fields.add(
      "is_causal", settings.is_causal,
      "whether the slots of a block see only earlier ones; absent = in sliding layers only");
  fields.add_choice(
      "dtype", settings.dtype, {"bfloat16", "float32"}, "weights and arithmetic of the drafter");
  fields.add(
      "num_attention_heads", settings.num_attention_heads, "query heads; 0 = the target's",
      kAtLeastZero);
  fields.add(
      "num_key_value_heads", settings.num_key_value_heads, "key heads; 0 = the target's",
      kAtLeastZero);
  fields.add("head_dim", settings.head_dim, "width of a head; 0 = the target's", kAtLeastZero);
  fields.add(
      "intermediate_size", settings.intermediate_size, "width of the MLP; 0 = the target's",
      kAtLeastZero);
}

void add_fields(FieldList& fields, AttentionSettings& settings) {
  fields.begin_section("attention");
  fields.add_choice(
      "method", settings.method, {"block", "gather", "dense"},
      "how draft blocks attend: neighbouring blocks against the slice of context they share; "
      "gathered keys in recomputed chunks; or a dense mask over everything");
  fields.add(
      "allow_math", settings.allow_math,
      "lets gather run by libtorch's math backend on CUDA, which keeps all scores of a chunk");
}

ops::AttentionMethod parse_attention_method(const std::string& name) {
  if (name == "gather") return ops::AttentionMethod::kGather;
  return name == "dense" ? ops::AttentionMethod::kDense : ops::AttentionMethod::kBlock;
}

torch::ScalarType parse_dtype(const std::string& name) {
  DS_CHECK(name == "float32" || name == "bfloat16");
  return name == "float32" ? torch::kFloat : torch::kBFloat16;
}

std::string dtype_name(torch::ScalarType dtype) {
  return dtype == torch::kBFloat16 ? "bfloat16" : "float32";
}

torch::Device parse_device(const std::string& name, const std::string& key) {
  if (name == "cpu") return torch::kCPU;
  const int64_t count = ops::cuda::count_devices();
  for (int64_t i = 0; i < count; ++i)
    if (name == fmt::format("cuda:{}", i)) return {torch::kCUDA, static_cast<c10::DeviceIndex>(i)};
  throw DeviceError(
      {.what = key,
       .expected = count == 0   ? "cpu, the only device here"
                   : count == 1 ? "cpu or cuda:0"
                                : fmt::format("cpu, or cuda:0 to cuda:{}", count - 1),
       .got = fmt::format("'{}'", name),
       .hint = fmt::format("--{}={}", key, count == 0 ? "cpu" : "cuda:0")});
}

}  // namespace draftsmith::model
