// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/model/drafter.h"

#include <fmt/format.h>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"
#include "draftsmith/formats/drafter_config_writing.h"
#include "draftsmith/formats/drafter_layouts.h"
#include "draftsmith/model/settings.h"
#include "draftsmith/ops/block_attention.h"
#include "draftsmith/ops/checks.h"
#include "draftsmith/ops/rms_norm.h"

namespace draftsmith::model {
namespace {

/// What other trainers store beside a drafter's own tensors. `make_drafter` compares the first two
/// with the target's.
const std::vector<std::string> kBorrowedTensors = {
    "embed_tokens.weight",  "lm_head.weight",         "t2d", "d2t",
    "verifier_norm.weight", "verifier_lm_head.weight"};

}  // namespace

Drafter::Drafter(formats::DrafterConfig config, WeightMap weights)
    : config_(std::move(config)), rope_(config_.rope, config_.head_dim) {
  for (const WeightSpec& spec : list_drafter_weights(config_)) {
    const auto found = weights.find(spec.name);
    DS_CHECK(found != weights.end() && found->second.sizes() == at::IntArrayRef(spec.shape));
    parameters_.emplace_back(spec.name, found->second);
  }
  fc_.weight = weights.at("fc.weight");
  hidden_norm_ = weights.at("hidden_norm.weight");
  for (int64_t i = 0; i < config_.num_layers; ++i)
    layers_.push_back(DecoderLayer::bind(weights, fmt::format("layers.{}.", i), config_));
  norm_ = weights.at("norm.weight");
}

Drafter Drafter::load(const std::filesystem::path& folder, torch::ScalarType dtype) {
  auto config = formats::read_drafter_config(folder);
  auto reader = formats::SafetensorsReader::open_folder(folder);
  formats::use_own_tensor_names(reader);
  auto weights = load_weights(reader, list_drafter_weights(config), dtype, kBorrowedTensors);
  for (auto& [name, tensor] : weights)
    tensor = tensor.clone();  // off the read-only mapping
  return {std::move(config), std::move(weights)};
}

void Drafter::save(const std::filesystem::path& folder, torch::ScalarType dtype) const {
  write_file_atomically(
      folder / "config.json", formats::write_drafter_config(config_, dtype_name(dtype)));
  formats::NamedTensors tensors;
  for (const auto& [name, tensor] : parameters_)
    tensors.emplace_back(name, tensor.detach().to(dtype));
  formats::write_safetensors(folder / "model.safetensors", tensors);
}

torch::Tensor Drafter::project_features(const torch::Tensor& features) const {
  const auto [B, S, F] = ops::dims<3>(features, "features");
  ops::check_shape(features, {B, S, fc_.weight.size(1)}, "features");
  return ops::rms_norm(fc_(features), hidden_norm_, config_.rms_norm_eps);
}

ops::BlockVisibility Drafter::visibility(size_t layer) const {
  return {
      config_.is_sliding[layer] ? config_.sliding_window : 0,
      config_.is_causal_block(static_cast<int64_t>(layer))};
}

torch::Tensor Drafter::run_layer(
    size_t index,
    const torch::Tensor& hidden,
    const ops::RotaryAngles& angles,
    const ContextKeys& context,
    const torch::Tensor& mask) const {
  const DecoderLayer& layer = layers_[index];
  const auto normed = ops::rms_norm(hidden, layer.input_norm, layer.eps);
  const auto attended = ops::block_attention(
      layer.make_queries(normed, angles),
      torch::cat({context.keys, layer.make_keys(normed, angles)}, 1),
      torch::cat({context.values, layer.make_values(normed)}, 1), mask);
  return layer.finish(hidden, attended);
}

torch::Tensor Drafter::forward(
    const torch::Tensor& embedded,
    const torch::Tensor& features,
    const data::DraftBlocks& blocks) const {
  const auto [B, Q, D] = ops::dims<3>(embedded, "embedded");
  const int64_t S = features.size(1);
  const auto context = project_features(features);  // one projection feeds every layer
  const auto context_angles = rope_.angles(blocks.context_positions, dtype());
  const auto block_angles = rope_.angles(blocks.positions.view({B, Q}), dtype());

  torch::Tensor masks[2];  // full, sliding: one each, however many layers share it
  auto hidden = embedded;
  for (size_t i = 0; i < layers_.size(); ++i) {
    auto& mask = masks[config_.is_sliding[i] ? 1 : 0];
    if (!mask.defined()) mask = ops::make_block_mask(blocks.layout, visibility(i), S);
    const ContextKeys keys{
        layers_[i].make_keys(context, context_angles), layers_[i].make_values(context)};
    hidden = run_layer(i, hidden, block_angles, keys, mask);
  }
  return ops::rms_norm(hidden, norm_, config_.rms_norm_eps);
}

KvCache Drafter::make_cache(int64_t capacity) const {
  return KvCache(
      config_.num_layers, 1, capacity, config_.num_kv_heads, config_.head_dim,
      fc_.weight.options());
}

void Drafter::append_context(KvCache& cache, const torch::Tensor& features) const {
  const at::NoGradGuard no_grad;
  const int64_t T = features.size(1);
  const auto context = project_features(features);
  const auto angles = rope_.angles(cache.next_positions(T), dtype());
  for (size_t i = 0; i < layers_.size(); ++i) {
    cache.write(
        static_cast<int64_t>(i), layers_[i].make_keys(context, angles),
        layers_[i].make_values(context));
  }
  cache.advance({T});
}

torch::Tensor Drafter::draft(const torch::Tensor& embedded, const KvCache& cache) const {
  const at::NoGradGuard no_grad;
  const auto [B, K, D] = ops::dims<3>(embedded, "embedded");
  const int64_t length = cache.lengths().at(0);
  const ops::BlockLayout layout{
      torch::full({1, 1}, length, torch::kLong), torch::ones({1, 1}, torch::kBool),
      torch::zeros({1, 1}, torch::kLong), K};
  const auto angles = rope_.angles(cache.next_positions(K), dtype());
  auto hidden = embedded;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    const ContextKeys keys{
        cache.keys(index).narrow(1, 0, length), cache.values(index).narrow(1, 0, length)};
    hidden =
        run_layer(i, hidden, angles, keys, ops::make_block_mask(layout, visibility(i), length));
  }
  return ops::rms_norm(hidden, norm_, config_.rms_norm_eps);
}

int64_t Drafter::num_parameters() const {
  int64_t count = 0;
  for (const auto& [name, tensor] : parameters_)
    count += tensor.numel();
  return count;
}

}  // namespace draftsmith::model
