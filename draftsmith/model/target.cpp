// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/model/target.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "draftsmith/base/error.h"
#include "draftsmith/base/log.h"
#include "draftsmith/ops/cached_attention.h"
#include "draftsmith/ops/causal_attention.h"
#include "draftsmith/ops/checks.h"
#include "draftsmith/ops/implementations.h"
#include "draftsmith/ops/linear.h"

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
  torch::Tensor join(torch::Device device) const {
    if (states_.empty()) return {};
    std::vector<torch::Tensor> states;
    for (const auto& state : states_)
      states.push_back(state.to(device));
    return torch::cat(states, -1);
  }

 private:
  std::vector<int64_t> layer_ids_;
  std::vector<torch::Tensor> states_;
};

std::vector<torch::Device> list_devices(const TargetSettings& settings) {
  if (settings.devices.empty()) return {parse_device(settings.device, "target.device")};
  std::vector<torch::Device> devices;
  for (const std::string& name : settings.devices)
    devices.push_back(parse_device(name, "target.devices"));
  return devices;
}

/// In the order of their first mention.
std::vector<torch::Device> list_distinct(const std::vector<torch::Device>& devices) {
  std::vector<torch::Device> distinct;
  for (const torch::Device device : devices)
    if (std::find(distinct.begin(), distinct.end(), device) == distinct.end())
      distinct.push_back(device);
  return distinct;
}

/// Devices of the embedding, of every layer, and of the final norm with the head.
std::vector<torch::Device> place_parts(
    const std::vector<WeightSpec>& specs,
    int64_t num_layers,
    torch::ScalarType dtype,
    const std::vector<torch::Device>& devices) {
  std::vector<int64_t> bytes(static_cast<size_t>(num_layers) + 2, 0);
  for (const WeightSpec& spec : specs)
    bytes[static_cast<size_t>(spec.layer + 1)] += count_bytes(spec, dtype);
  const auto numbers = split_by_bytes(bytes, devices.size());
  for (size_t n = 0; n < devices.size() && devices.size() > 1; ++n) {
    const auto begin = std::lower_bound(numbers.begin() + 1, numbers.end() - 1, n);
    const auto end = std::upper_bound(begin, numbers.end() - 1, n);
    log_info(
        "target: {} layers from layer {} on {}", end - begin, begin - numbers.begin() - 1,
        devices[n].str());
  }
  std::vector<torch::Device> places;
  for (const size_t number : numbers)
    places.push_back(devices[number]);
  return places;
}

/// The documents of a batch, and the position of every token in its own.
struct Documents {
  std::vector<ops::Span> spans;
  torch::Tensor positions;  // [B or 1, S]

  static Documents of_whole_rows(int64_t B, int64_t S) {
    Documents documents{{}, torch::arange(S, torch::kLong).unsqueeze(0)};
    for (int64_t b = 0; b < B; ++b)
      documents.spans.push_back({b, 0, S});
    return documents;
  }
};

Documents find_documents(const torch::Tensor& document_ids, int64_t B, int64_t S) {
  ops::check_shape(document_ids, {B, S}, "document_ids");
  const auto dense = document_ids.to(torch::kLong).contiguous();
  Documents documents{{}, torch::zeros({B, S}, torch::kLong)};
  for (int64_t b = 0; b < B; ++b) {
    const int64_t* ids = dense.const_data_ptr<int64_t>() + b * S;
    int64_t* positions = documents.positions.data_ptr<int64_t>() + b * S;
    for (int64_t begin = 0, end = 0; begin < S && ids[begin] >= 0; begin = end) {
      for (end = begin; end < S && ids[end] == ids[begin]; ++end)
        positions[end] = end - begin;
      documents.spans.push_back({b, begin, end});
    }
    const int64_t end =
        documents.spans.empty() || documents.spans.back().row != b ? 0 : documents.spans.back().end;
    if (std::any_of(ids + end, ids + S, [](int64_t id) { return id >= 0; })) {
      throw ShapeError(
          {.what = "document_ids",
           .expected = "padding (-1) after the documents only",
           .got = "a document after padding",
           .where = fmt::format("row {}", b)});
    }
  }
  return documents;
}

}  // namespace

Target Target::load(const TargetSettings& settings) {
  return load_parts(settings, /*is_whole=*/true);
}

Target Target::load_ends(
    const TargetSettings& settings,
    std::shared_ptr<const data::FeatureStore> stored) {
  auto target = load_parts(settings, /*is_whole=*/false);
  target.stored_ = std::move(stored);
  return target;
}

Target Target::load_parts(const TargetSettings& settings, bool is_whole) {
  if (settings.path.empty()) {
    throw ConfigError(
        {.what = "target.path",
         .expected = "a Hugging Face folder",
         .got = "none",
         .hint = "--target.path=DIR"});
  }
  const auto devices = list_devices(settings);
  const auto dtype = parse_dtype(settings.dtype);
  Target target;
  target.config_ = formats::read_target_config(settings.path);
  auto& config = target.config_;
  const auto reader = formats::SafetensorsReader::open_folder(settings.path);
  if (reader.has("model.language_model.embed_tokens.weight"))
    config.weight_prefix = "model.language_model.";
  const bool has_own_head = reader.has("lm_head.weight");
  auto specs = list_target_weights(config);
  const auto places = place_parts(specs, config.num_layers, dtype, devices);
  std::vector<std::string> known_extras;
  if (config.has_tied_head) known_extras.emplace_back("lm_head.weight");
  if (!is_whole) {
    known_extras = reader.names();
    std::erase_if(specs, [&](const WeightSpec& spec) {
      return spec.layer >= 0 && spec.layer < config.num_layers;
    });
  }
  auto weights = load_weights(reader, specs, dtype, known_extras, [&](const WeightSpec& spec) {
    return places[static_cast<size_t>(spec.layer + 1)];
  });
  target.layer_devices_.assign(places.begin() + 1, places.end() - 1);

  target.embedding_ = weights.at(config.weight_prefix + "embed_tokens.weight");
  target.final_norm_ = weights.at(config.weight_prefix + "norm.weight");
  for (int64_t i = 0; is_whole && i < config.num_layers; ++i) {
    const auto prefix = fmt::format("{}layers.{}.", config.weight_prefix, i);
    TargetLayer layer{DecoderLayer::bind(weights, prefix, config), std::nullopt};
    layer.has_zero_centred_norms = config.is_hybrid();
    layer.has_output_gate = config.is_hybrid();
    if (config.is_linear[static_cast<size_t>(i)])
      layer.delta = DeltaNet::bind(weights, prefix + "linear_attn.", config);
    target.layers_.push_back(std::move(layer));
  }
  target.rope_ = Rope(config.rope, config.rotary_dim);
  target.lm_head_ = config.has_tied_head ? target.embedding_.to(target.final_norm_.device())
                                         : weights.at("lm_head.weight");
  if (config.has_tied_head && has_own_head &&
      !reader.tensor("lm_head.weight").to(dtype).equal(target.embedding_)) {
    log_warning(fmt::format(
        "{}: the file's lm_head.weight differs from the embedding, but config.json ties them; the "
        "embedding is used",
        settings.path));
  }
  log_info(
      "target {}: {} with {} layers, hidden {}, vocabulary {}, {}", settings.path,
      config.model_type, config.num_layers, config.hidden_size, config.vocab_size, settings.dtype);
  const auto& linear = config.linear;
  ops::ModelHeads heads{config.num_heads, config.num_kv_heads, config.head_dim, {}};
  if (config.is_hybrid()) heads.linear_dims = {linear.key_head_dim, linear.value_head_dim};
  for (const torch::Device device : list_distinct(devices))
    for (const auto& line : ops::describe_operations(device, dtype, heads))
      log_info("  {}", line);
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

template <class Attend, class Mix>
TargetStates Target::run(
    const torch::Tensor& ids,
    const torch::Tensor& positions,
    const std::vector<int64_t>& layer_ids,
    const Attend& attend,
    const Mix& mix) const {
  DS_CHECK(!layers_.empty());  // load_ends gives a target without them
  auto angles = rope_.angles(positions, dtype());
  FeatureCapture capture(layer_ids);
  auto hidden = embed(ids);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const TargetLayer& layer = layers_[i];
    const torch::Device device = layer_devices_[i];
    hidden = hidden.to(device);
    angles = {angles.cos.to(device), angles.sin.to(device)};
    const auto normed = layer.normalise(hidden, layer.input_norm);
    if (layer.delta) {
      hidden = layer.add_mlp(hidden + mix(i, *layer.delta, normed));
    } else {
      const auto [queries, gate] = layer.make_gated_queries(normed, angles);
      auto attended =
          attend(i, queries, layer.make_keys(normed, angles), layer.make_values(normed));
      if (gate.defined()) attended = attended * gate.sigmoid();
      hidden = layer.finish(hidden, attended);
    }
    capture.offer(static_cast<int64_t>(i), hidden);
  }
  const auto end = hidden.to(final_norm_.device());
  return {capture.join(end.device()), layers_.back().normalise(end, final_norm_)};
}

void Target::check_positions(int64_t count) const {
  if (config_.max_position_embeddings == 0 || count <= config_.max_position_embeddings) return;
  throw ConfigError(
      {.what = "tokens of a row",
       .expected = fmt::format(
           "at most {}, the target's max_position_embeddings", config_.max_position_embeddings),
       .got = fmt::format("{}", count),
       .hint = "shorter sequences, or a target with scaled rotary positions"});
}

TargetStates Target::forward(
    const torch::Tensor& ids,
    const std::vector<int64_t>& layer_ids,
    const torch::Tensor& document_ids) const {
  const at::NoGradGuard no_grad;
  const auto [B, S] = ops::dims<2>(ids, "input_ids");
  const auto documents =
      document_ids.defined() ? find_documents(document_ids, B, S) : Documents::of_whole_rows(B, S);
  for (const ops::Span& span : documents.spans)
    check_positions(span.end - span.begin);
  return run(
      ids, documents.positions, layer_ids,
      [&](size_t, const auto& queries, const auto& keys, const auto& values) {
        return ops::causal_attention(queries, keys, values, documents.spans);
      },
      [&](size_t, const DeltaNet& net, const torch::Tensor& normed) {
        return net.run_spans(normed, documents.spans);
      });
}

TargetStates Target::forward(
    const torch::Tensor& ids,
    const std::vector<int64_t>& layer_ids,
    TargetCache& cache,
    const std::vector<int64_t>& row_tokens) const {
  const at::NoGradGuard no_grad;
  const auto [B, T] = ops::dims<2>(ids, "input_ids");
  DS_CHECK(B == cache.num_rows() && (row_tokens.empty() || std::ssize(row_tokens) == B));
  const auto counts =
      row_tokens.empty() ? std::vector<int64_t>(static_cast<size_t>(B), T) : row_tokens;
  for (size_t b = 0; b < counts.size(); ++b)
    check_positions(cache.lengths()[b] + counts[b]);
  cache.tree_.reset();
  cache.pending_.clear();
  KvCache& kv = cache.kv_;
  // Into an empty cache the new tokens see only each other.
  const bool is_prefill = std::all_of(
      kv.lengths().begin(), kv.lengths().end(), [](int64_t length) { return length == 0; });
  const auto whole_rows = Documents::of_whole_rows(B, T).spans;
  auto states = run(
      ids, kv.next_positions(T), layer_ids,
      [&](size_t i, const auto& queries, const auto& keys, const auto& values) {
        const int64_t layer = cache.kv_layers_[i];
        kv.write(layer, keys, values);
        return is_prefill
                   ? ops::causal_attention(queries, keys, values, whole_rows)
                   : ops::cached_attention(queries, kv.keys(layer), kv.values(layer), kv.lengths());
      },
      [&](size_t i, const DeltaNet& net, const torch::Tensor& normed) {
        return is_prefill ? net.prefill(normed, counts, cache.delta_[i])
                          : net.step(normed, counts, cache.delta_[i]);
      });
  kv.advance(counts);
  return states;
}

TargetStates Target::verify(
    const std::vector<TokenTree>& trees,
    const std::vector<int64_t>& layer_ids,
    TargetCache& cache) const {
  const at::NoGradGuard no_grad;
  DS_CHECK(std::ssize(trees) == cache.num_rows());
  std::vector<std::vector<int64_t>> parents;
  for (const TokenTree& tree : trees) {
    DS_CHECK(tree.ids.size() == tree.parents.size());
    parents.push_back(tree.parents);
  }
  cache.tree_ = ops::make_tree_layout(parents);
  cache.pending_.assign(layers_.size(), {});
  const ops::TreeLayout& layout = *cache.tree_;
  auto ids = torch::zeros({layout.B, layout.T}, torch::kLong);
  for (size_t b = 0; b < trees.size(); ++b)
    std::copy(
        trees[b].ids.begin(), trees[b].ids.end(),
        ids.data_ptr<int64_t>() + static_cast<int64_t>(b) * layout.T);
  KvCache& kv = cache.kv_;
  const auto positions = torch::tensor(kv.lengths(), torch::kLong).unsqueeze(1) +
                         torch::tensor(layout.depths, torch::kLong).view({layout.B, layout.T});
  return run(
      ids, positions, layer_ids,
      [&](size_t i, const auto& queries, const auto& keys, const auto& values) {
        const int64_t layer = cache.kv_layers_[i];
        kv.write(layer, keys, values);
        return ops::cached_attention(
            queries, kv.keys(layer), kv.values(layer), kv.lengths(), &layout);
      },
      [&](size_t i, const DeltaNet& net, const torch::Tensor& normed) {
        return net.verify(normed, layout, cache.delta_[i], cache.pending_[i]);
      });
}

TargetCache Target::make_cache(int64_t num_rows, int64_t capacity) const {
  const auto& linear = config_.linear;
  const TargetCache::Sizes sizes{
      .num_rows = num_rows,
      .capacity = capacity,
      .num_kv_heads = config_.num_kv_heads,
      .head_dim = config_.head_dim,
      .is_linear = config_.is_linear,
      .delta =
          {linear.num_key_heads, linear.num_value_heads, linear.key_head_dim,
           linear.value_head_dim},
      .conv_taps = linear.conv_taps};
  std::vector<torch::TensorOptions> options;
  for (const torch::Device device : layer_devices_)
    options.push_back(torch::TensorOptions(dtype()).device(device));
  return {sizes, options};
}

torch::Tensor Target::embed(const torch::Tensor& ids) const {
  return at::embedding(embedding_, ids.to(embedding_.device()));
}

torch::Tensor Target::logits(const torch::Tensor& last) const {
  return ops::linear(last, lm_head_, {});
}

}  // namespace draftsmith::model
