// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/model/drafter.h"

#include <fmt/format.h>

#include <algorithm>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"
#include "draftsmith/formats/drafter_config_writing.h"
#include "draftsmith/formats/drafter_layouts.h"
#include "draftsmith/model/settings.h"
#include "draftsmith/ops/block_attention.h"
#include "draftsmith/ops/cached_attention.h"
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

Drafter Drafter::copy_to(torch::Device device) const {
  WeightMap weights;
  for (const auto& [name, tensor] : parameters_)
    weights[name] = tensor.detach().to(device, /*non_blocking=*/false, /*copy=*/true);
  return {config_, std::move(weights)};
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

template <class Attend>
torch::Tensor Drafter::run_layer(
    size_t index,
    const torch::Tensor& hidden,
    const ops::RotaryAngles& block_angles,
    const Attend& attend) const {
  const DecoderLayer& layer = layers_[index];
  const auto normed = ops::rms_norm(hidden, layer.input_norm, layer.eps);
  return layer.finish(
      hidden, attend(
                  layer.make_queries(normed, block_angles), layer.make_keys(normed, block_angles),
                  layer.make_values(normed)));
}

torch::Tensor Drafter::run_training_layer(
    size_t index,
    const torch::Tensor& hidden,
    const torch::Tensor& context,
    const BlockPlaces& places,
    ops::AttentionMethod attention) const {
  return run_layer(
      index, hidden, places.block_angles,
      [&](const auto& queries, const auto& keys, const auto& values) {
        const DecoderLayer& layer = layers_[index];
        // A node of the layer's own: gradients of its keys and values meet there before they join
        // those of other layers, as they do where a layer is computed again.
        const auto seen = context.view_as(context);
        return ops::block_attention(
            {queries, layer.make_keys(seen, places.context_angles), layer.make_values(seen), keys,
             values},
            places.layout, visibility(index), attention);
      });
}

/// A layer that keeps its inputs, and runs again in backward.
struct RecomputedLayer : torch::autograd::Function<RecomputedLayer> {
  struct Call {
    const Drafter* drafter;
    size_t index;
    BlockPlaces places;
    ops::AttentionMethod attention;

    torch::Tensor run(const torch::Tensor& hidden, const torch::Tensor& context) const {
      return drafter->run_training_layer(index, hidden, context, places, attention);
    }
    std::vector<torch::Tensor> parameters() const {
      const std::string prefix = fmt::format("layers.{}.", index);
      std::vector<torch::Tensor> own;
      for (const auto& [name, tensor] : drafter->parameters())
        if (name.rfind(prefix, 0) == 0) own.push_back(tensor);
      return own;
    }
  };
  /// Calls travel through autograd's saved data as a custom class would; a shared pointer in a
  /// capsule is enough.
  struct Holder : torch::CustomClassHolder {
    explicit Holder(Call made) : call(std::move(made)) {}
    Call call;
  };

  static constexpr size_t kMaxParameters = 15;  // with the four biases of attention

  /// `parameters` are named for autograd, which takes no lists: kMaxParameters tensors, empty
  /// beyond those that the layer has.
  template <class... Parameters>
  static torch::Tensor forward(
      torch::autograd::AutogradContext* context,
      const torch::Tensor& hidden,
      const torch::Tensor& projected,
      const Call& call,
      const Parameters&... /*parameters*/) {
    context->save_for_backward({hidden, projected});
    context->saved_data["call"] = c10::IValue::make_capsule(c10::make_intrusive<Holder>(call));
    // With gradients, as without recomputation: few rows would else run in another kernel of
    // ops::linear. What a layer keeps for backward is gone at the end of this line.
    const at::AutoGradMode with_grad(true);
    return call.run(hidden.detach(), projected.detach()).detach();
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list upstream) {
    const auto saved = context->get_saved_variables();
    const auto holder =
        c10::static_intrusive_pointer_cast<Holder>(context->saved_data["call"].toCapsule());
    const at::AutoGradMode with_grad(true);
    std::vector<torch::Tensor> inputs = {
        saved[0].detach().set_requires_grad(true), saved[1].detach().set_requires_grad(true)};
    const auto output = holder->call.run(inputs[0], inputs[1]);
    const auto parameters = holder->call.parameters();
    inputs.insert(inputs.end(), parameters.begin(), parameters.end());
    auto gradients = torch::autograd::grad({output}, inputs, upstream);
    gradients.insert(gradients.begin() + 2, torch::Tensor());  // of the call
    gradients.resize(3 + kMaxParameters);
    return gradients;
  }

  template <size_t... I>
  static torch::Tensor start(
      const torch::Tensor& hidden,
      const torch::Tensor& projected,
      const Call& call,
      std::index_sequence<I...> /*numbers*/) {
    auto parameters = call.parameters();
    DS_CHECK(parameters.size() <= kMaxParameters);
    parameters.resize(kMaxParameters, torch::empty({0}));
    return apply(hidden, projected, call, parameters[I]...);
  }
};

std::vector<ops::BlockVisibility> Drafter::list_visibilities() const {
  std::vector<ops::BlockVisibility> kinds;
  for (size_t i = 0; i < layers_.size(); ++i)
    if (std::find(kinds.begin(), kinds.end(), visibility(i)) == kinds.end())
      kinds.push_back(visibility(i));
  return kinds;
}

ops::RotaryAngles Drafter::angles(const torch::Tensor& positions) const {
  const auto here = rope_.angles(positions, dtype());
  if (device().is_cpu()) return here;
  // From memory that is not pinned, the copy would wait for what the stream waits for.
  const auto place = [&](const torch::Tensor& tensor) {
    return tensor.pin_memory().to(device(), /*non_blocking=*/true);
  };
  return {place(here.cos), place(here.sin)};
}

BlockPlaces Drafter::place_blocks(
    const data::DraftBlocks& blocks,
    ops::AttentionMethod attention,
    bool has_fixed_sizes) const {
  BlockPlaces places{
      blocks.layout, angles(blocks.context_positions), angles(blocks.positions.flatten(1))};
  const ops::BlockHeads heads{
      blocks.context_positions.size(1), config_.num_heads, config_.num_kv_heads, config_.head_dim};
  if (attention == ops::AttentionMethod::kBlock && ops::needs_plans(device(), dtype(), heads))
    places.layout.plans =
        ops::place_plans(blocks.layout, list_visibilities(), heads, device(), has_fixed_sizes);
  return places;
}

torch::Tensor Drafter::forward(
    const torch::Tensor& embedded,
    const torch::Tensor& features,
    const data::DraftBlocks& blocks,
    const ForwardPlan& plan) const {
  return forward(
      embedded, features, place_blocks(blocks, plan.attention, /*has_fixed_sizes=*/false), plan);
}

torch::Tensor Drafter::forward(
    const torch::Tensor& embedded,
    const torch::Tensor& features,
    const BlockPlaces& places,
    const ForwardPlan& plan) const {
  ops::check_rank(embedded, 3, "embedded");
  const auto context = project_features(features);  // one projection feeds every layer
  const bool recomputes = plan.recomputes_layers && at::GradMode::is_enabled();
  auto hidden = embedded;
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (recomputes) {
      const RecomputedLayer::Call call{this, i, places, plan.attention};
      hidden = RecomputedLayer::start(
          hidden, context, call, std::make_index_sequence<RecomputedLayer::kMaxParameters>());
    } else {
      hidden = run_training_layer(i, hidden, context, places, plan.attention);
    }
  }
  return ops::rms_norm(hidden, norm_, config_.rms_norm_eps);
}

KvCache Drafter::make_cache(int64_t num_rows, int64_t capacity) const {
  return KvCache(
      config_.num_layers, num_rows, capacity + config_.block_size, config_.num_kv_heads,
      config_.head_dim, fc_.weight.options());
}

void Drafter::append_context(
    KvCache& cache,
    const torch::Tensor& features,
    const std::vector<int64_t>& row_tokens) const {
  const at::NoGradGuard no_grad;
  const auto [B, T, F] = ops::dims<3>(features, "features");
  const auto context = project_features(features);
  const auto context_angles = angles(cache.next_positions(T));
  for (size_t i = 0; i < layers_.size(); ++i) {
    cache.write(
        static_cast<int64_t>(i), layers_[i].make_keys(context, context_angles),
        layers_[i].make_values(context));
  }
  cache.advance(row_tokens.empty() ? std::vector<int64_t>(static_cast<size_t>(B), T) : row_tokens);
}

torch::Tensor Drafter::draft(const torch::Tensor& embedded, KvCache& cache) const {
  const at::NoGradGuard no_grad;
  const int64_t K = ops::dims<3>(embedded, "embedded")[1];
  const auto block_angles = angles(cache.next_positions(K));
  auto hidden = embedded;
  for (size_t i = 0; i < layers_.size(); ++i) {
    hidden = run_layer(
        i, hidden, block_angles, [&](const auto& queries, const auto& keys, const auto& values) {
          const auto layer = static_cast<int64_t>(i);
          cache.write(layer, keys, values);
          return ops::cached_block_attention(
              queries, cache.keys(layer), cache.values(layer), cache.lengths(), visibility(i));
        });
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
