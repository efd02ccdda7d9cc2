// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/model/target.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "draftsmith/base/error.h"
#include "draftsmith/base/log.h"
#include "draftsmith/ops/cached_attention.h"
#include "draftsmith/ops/checks.h"
#include "draftsmith/ops/linear.h"
#include "draftsmith/ops/rms_norm.h"

namespace draftsmith::model {
namespace {

/// Collects the outputs of chosen layers in the order of the list.
class FeatureCapture {
 public:
  explicit FeatureCapture(const std::vector<int64_t>& layer_ids)
      : layer_ids_(layer_ids), states_(layer_ids.size()) {}

  void offer(int64_t layer, const torch::Tensor& hidden) {
    for (size_t i = 0; i < layer_ids_.size(); ++i)
      if (layer_ids_[i] == layer) states_[i] = hidden;
  }
  torch::Tensor join() const { return states_.empty() ? torch::Tensor() : torch::cat(states_, -1); }

 private:
  std::vector<int64_t> layer_ids_;
  std::vector<torch::Tensor> states_;
};

torch::Tensor
attend_causally(const torch::Tensor& query, const torch::Tensor& key, const torch::Tensor& value) {
  return at::scaled_dot_product_attention(
             query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), {}, 0.0,
             /*is_causal=*/true, std::nullopt, /*enable_gqa=*/true)
      .transpose(1, 2);
}

}  // namespace

Target Target::load(const TargetSettings& settings) {
  if (settings.path.empty()) {
    throw ConfigError(
        {.what = "target.path",
         .expected = "a Hugging Face folder",
         .got = "none",
         .hint = "--target.path=DIR"});
  }
  const torch::Device device = parse_device(settings.device);
  const auto dtype = parse_dtype(settings.dtype);
  Target target;
  target.config_ = formats::read_target_config(settings.path);
  const auto& config = target.config_;
  const auto reader = formats::SafetensorsReader::open_folder(settings.path);
  const bool has_own_head = reader.has("lm_head.weight");
  auto weights = load_weights(
      reader, list_target_weights(config), dtype,
      config.has_tied_head ? std::vector<std::string>{"lm_head.weight"}
                           : std::vector<std::string>{});

  target.embedding_ = weights.at("model.embed_tokens.weight");
  target.final_norm_ = weights.at("model.norm.weight");
  for (int64_t i = 0; i < config.num_layers; ++i)
    target.layers_.push_back(
        DecoderLayer::bind(weights, fmt::format("model.layers.{}.", i), config));
  target.rope_ = Rope(config.rope, config.head_dim);
  target.lm_head_ = config.has_tied_head ? target.embedding_ : weights.at("lm_head.weight");
  if (config.has_tied_head && has_own_head &&
      !reader.tensor("lm_head.weight").to(dtype).equal(target.embedding_)) {
    log_warning(fmt::format(
        "{}: the file's lm_head.weight differs from the embedding, but config.json ties them; the "
        "embedding is used",
        settings.path));
  }
  DS_CHECK(device.is_cpu());
  log_info(
      "target {}: {} with {} layers, hidden {}, vocabulary {}, {}", settings.path,
      config.model_type, config.num_layers, config.hidden_size, config.vocab_size, settings.dtype);
  return target;
}

void check_layer_ids(const formats::TargetConfig& config, const std::vector<int64_t>& layer_ids) {
  for (const int64_t id : layer_ids) {
    if (id >= 0 && id <= config.num_layers - 2) continue;
    throw ConfigError(
        {.what = "drafter.target_layer_ids",
         .expected = fmt::format(
             "layers from 0 to {} (the last one cannot be served)", config.num_layers - 2),
         .got = fmt::format("{}", id),
         .hint = "other layers"});
  }
}

TargetStates Target::forward(const torch::Tensor& ids, const std::vector<int64_t>& layer_ids)
    const {
  const at::NoGradGuard no_grad;
  const auto [B, S] = ops::dims<2>(ids, "input_ids");
  const auto angles = rope_.angles(torch::arange(S, torch::kLong).unsqueeze(0), dtype());
  FeatureCapture capture(layer_ids);
  auto hidden = embed(ids);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const DecoderLayer& layer = layers_[i];
    const auto normed = ops::rms_norm(hidden, layer.input_norm, layer.eps);
    const auto attended = attend_causally(
        layer.make_queries(normed, angles), layer.make_keys(normed, angles),
        layer.make_values(normed));
    hidden = layer.finish(hidden, attended);
    capture.offer(static_cast<int64_t>(i), hidden);
  }
  return {capture.join(), ops::rms_norm(hidden, final_norm_, config_.rms_norm_eps)};
}

TargetStates Target::forward(
    const torch::Tensor& ids,
    const std::vector<int64_t>& layer_ids,
    KvCache& cache,
    const std::vector<int64_t>& row_tokens) const {
  const at::NoGradGuard no_grad;
  const auto [B, T] = ops::dims<2>(ids, "input_ids");
  DS_CHECK(B == cache.num_rows());
  const auto positions = cache.next_positions(T);
  const auto angles = rope_.angles(positions, dtype());
  // Into an empty cache the new tokens see only each other.
  const bool is_prefill = std::all_of(
      cache.lengths().begin(), cache.lengths().end(), [](int64_t length) { return length == 0; });
  FeatureCapture capture(layer_ids);
  auto hidden = embed(ids);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const DecoderLayer& layer = layers_[i];
    const auto index = static_cast<int64_t>(i);
    const auto normed = ops::rms_norm(hidden, layer.input_norm, layer.eps);
    const auto queries = layer.make_queries(normed, angles);
    const auto keys = layer.make_keys(normed, angles);
    const auto values = layer.make_values(normed);
    cache.write(index, keys, values);
    const auto attended =
        is_prefill ? attend_causally(queries, keys, values)
                   : ops::cached_attention(
                         queries, cache.keys(index), cache.values(index), cache.lengths());
    hidden = layer.finish(hidden, attended);
    capture.offer(index, hidden);
  }
  cache.advance(row_tokens.empty() ? std::vector<int64_t>(static_cast<size_t>(B), T) : row_tokens);
  return {capture.join(), ops::rms_norm(hidden, final_norm_, config_.rms_norm_eps)};
}

KvCache Target::make_cache(int64_t num_rows, int64_t capacity) const {
  return KvCache(
      config_.num_layers, num_rows, capacity, config_.num_kv_heads, config_.head_dim,
      lm_head_.options());
}

torch::Tensor Target::embed(const torch::Tensor& ids) const {
  return at::embedding(embedding_, ids);
}

torch::Tensor Target::logits(const torch::Tensor& last) const {
  return ops::linear(last, lm_head_, {});
}

}  // namespace draftsmith::model
