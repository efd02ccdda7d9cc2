// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/model/weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include <c10/util/accumulate.h>

#include "draftsmith/base/error.h"
#include "draftsmith/base/log.h"
#include "draftsmith/base/progress.h"

namespace draftsmith::model {
namespace {

void add_matrix(
    std::vector<WeightSpec>& specs,
    const std::string& name,
    int64_t out,
    int64_t in,
    bool has_bias) {
  specs.push_back({name + ".weight", {out, in}, WeightKind::kMatrix});
  if (has_bias) specs.push_back({name + ".bias", {out}, WeightKind::kBias});
}

void add_norm(std::vector<WeightSpec>& specs, const std::string& name, int64_t width) {
  specs.push_back({name + ".weight", {width}, WeightKind::kNorm});
}

void add_attention(
    std::vector<WeightSpec>& specs,
    const formats::TransformerConfig& config,
    const std::string& prefix,
    bool has_qk_norm,
    bool has_output_gate) {
  const int64_t D = config.hidden_size;
  const int64_t query_width = config.num_heads * config.head_dim;
  const int64_t key_width = config.num_kv_heads * config.head_dim;
  const bool has_bias = config.has_attention_bias;
  const int64_t gated_width = has_output_gate ? 2 * query_width : query_width;
  add_matrix(specs, prefix + "self_attn.q_proj", gated_width, D, has_bias);
  add_matrix(specs, prefix + "self_attn.k_proj", key_width, D, has_bias);
  add_matrix(specs, prefix + "self_attn.v_proj", key_width, D, has_bias);
  add_matrix(specs, prefix + "self_attn.o_proj", D, query_width, has_bias);
  if (has_qk_norm) {
    add_norm(specs, prefix + "self_attn.q_norm", config.head_dim);
    add_norm(specs, prefix + "self_attn.k_norm", config.head_dim);
  }
}

void add_linear_attention(
    std::vector<WeightSpec>& specs,
    const formats::TargetConfig& config,
    const std::string& prefix) {
  const auto& linear = config.linear;
  const int64_t D = config.hidden_size;
  const int64_t value_width = linear.num_value_heads * linear.value_head_dim;
  const int64_t width = 2 * linear.num_key_heads * linear.key_head_dim + value_width;
  add_matrix(specs, prefix + "in_proj_qkv", width, D, false);
  add_matrix(specs, prefix + "in_proj_z", value_width, D, false);
  add_matrix(specs, prefix + "in_proj_b", linear.num_value_heads, D, false);
  add_matrix(specs, prefix + "in_proj_a", linear.num_value_heads, D, false);
  specs.push_back(
      {prefix + "conv1d.weight", {width, 1, linear.conv_taps}, WeightKind::kMatrix});
  specs.push_back({prefix + "A_log", {linear.num_value_heads}, WeightKind::kFloat32});
  specs.push_back({prefix + "dt_bias", {linear.num_value_heads}, WeightKind::kFloat32});
  add_norm(specs, prefix + "norm", linear.value_head_dim);
  add_matrix(specs, prefix + "out_proj", D, value_width, false);
}

void add_mlp(
    std::vector<WeightSpec>& specs,
    const formats::TransformerConfig& config,
    const std::string& prefix) {
  const int64_t D = config.hidden_size;
  add_norm(specs, prefix + "post_attention_layernorm", D);
  add_matrix(specs, prefix + "mlp.gate_proj", config.intermediate_size, D, config.has_mlp_bias);
  add_matrix(specs, prefix + "mlp.up_proj", config.intermediate_size, D, config.has_mlp_bias);
  add_matrix(specs, prefix + "mlp.down_proj", D, config.intermediate_size, config.has_mlp_bias);
}

/// Parts of a checkpoint beside its decoder.
bool is_other_part(const std::string& name) {
  return name.rfind("mtp.", 0) == 0 || name.rfind("visual.", 0) == 0 ||
         name.rfind("model.visual.", 0) == 0;
}

/// The first five and how many there are.
std::string list_names(std::vector<std::string> names) {
  const size_t total = names.size();
  if (total > 5) names.resize(5);
  return fmt::format(
      "{} tensors are not used: {}{}", total, fmt::join(names, ", "), total > 5 ? ", ..." : "");
}

constexpr auto kFloat8 = c10::kFloat8_e4m3fn;
constexpr const char* kScaleSuffix = "_scale_inv";
constexpr int64_t kScaleBlock = 128;                    // elements on a side
constexpr int64_t kPieceBytes = int64_t{16} << 20;      // converted at once
constexpr int64_t kBytesWorthABar = int64_t{256} << 20;

/// Errors: DataError unless the file can give this tensor.
void check_tensor(const formats::SafetensorsReader& reader, const WeightSpec& spec) {
  reader.check_shape(spec.name, spec.shape);
  const auto dtype = reader.dtype(spec.name);
  if (dtype == kFloat8 && spec.shape.size() == 2) {
    const auto blocks = [](int64_t size) { return (size + kScaleBlock - 1) / kScaleBlock; };
    reader.check_shape(
        spec.name + kScaleSuffix, {blocks(spec.shape[0]), blocks(spec.shape[1])});
    return;
  }
  if (dtype == torch::kBFloat16 || dtype == torch::kHalf || dtype == torch::kFloat ||
      dtype == torch::kDouble)
    return;
  throw DataError(
      {.what = spec.name,
       .expected = "BF16, F16 or F32, or a matrix in F8_E4M3",
       .got = c10::toString(dtype),
       .where = reader.where()});
}

/// Rows [first, first + count) of a float8 matrix times the factors of their blocks.
torch::Tensor
scale_rows(const torch::Tensor& rows, const torch::Tensor& scales, int64_t first_block) {
  const int64_t num_blocks = (rows.size(0) + kScaleBlock - 1) / kScaleBlock;
  const auto factors = scales.narrow(0, first_block, num_blocks)
                           .to(torch::kFloat)
                           .repeat_interleave(kScaleBlock, 0)
                           .narrow(0, 0, rows.size(0))
                           .repeat_interleave(kScaleBlock, 1)
                           .narrow(1, 0, rows.size(1));
  return rows.to(torch::kFloat) * factors;
}

torch::Tensor convert(
    const formats::SafetensorsReader& reader,
    const std::string& name,
    torch::ScalarType dtype) {
  const auto source = reader.tensor(name);
  auto result = torch::empty(source.sizes(), torch::TensorOptions(dtype));
  if (source.dim() == 0 || source.numel() == 0) return result.copy_(source);
  const bool is_scaled = source.scalar_type() == kFloat8;
  const auto scales = is_scaled ? reader.tensor(name + kScaleSuffix) : torch::Tensor();
  const int64_t row_bytes = static_cast<int64_t>(source.nbytes()) / source.size(0);
  const int64_t blocks = std::max<int64_t>(1, kPieceBytes / row_bytes / kScaleBlock);
  const int64_t step = blocks * kScaleBlock;
  for (int64_t first = 0; first < source.size(0); first += step) {
    const int64_t count = std::min(step, source.size(0) - first);
    const auto rows = source.narrow(0, first, count);
    result.narrow(0, first, count)
        .copy_(is_scaled ? scale_rows(rows, scales, first / kScaleBlock) : rows);
    reader.forget(name, first * row_bytes, count * row_bytes);
  }
  return result;
}

/// Lists what the file holds beside `used`, once.
void report_unused(
    const formats::SafetensorsReader& reader,
    const std::set<std::string>& used) {
  std::vector<std::string> unused;
  std::vector<std::string> other_parts;
  for (const std::string& name : reader.names())
    if (used.count(name) == 0) (is_other_part(name) ? other_parts : unused).push_back(name);
  if (!other_parts.empty()) log_info("{}: {}", reader.where(), list_names(std::move(other_parts)));
  if (!unused.empty())
    log_warning(fmt::format("{}: {}", reader.where(), list_names(std::move(unused))));
}

}  // namespace

std::vector<WeightSpec> list_target_weights(const formats::TargetConfig& config) {
  std::vector<WeightSpec> specs;
  const int64_t D = config.hidden_size;
  const std::string& base = config.weight_prefix;
  add_matrix(specs, base + "embed_tokens", config.vocab_size, D, false);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const auto prefix = fmt::format("{}layers.{}.", base, i);
    const size_t first = specs.size();
    add_norm(specs, prefix + "input_layernorm", D);
    if (config.is_linear[static_cast<size_t>(i)]) {
      add_linear_attention(specs, config, prefix + "linear_attn.");
    } else {
      add_attention(specs, config, prefix, config.has_qk_norm(), config.is_hybrid());
    }
    add_mlp(specs, config, prefix);
    for (size_t j = first; j < specs.size(); ++j)
      specs[j].layer = i;
  }
  const size_t first = specs.size();
  add_norm(specs, base + "norm", D);
  if (!config.has_tied_head)
    specs.push_back({"lm_head.weight", {config.vocab_size, D}, WeightKind::kMatrix});
  for (size_t j = first; j < specs.size(); ++j)
    specs[j].layer = config.num_layers;
  return specs;
}

std::vector<WeightSpec> list_drafter_weights(const formats::DrafterConfig& config) {
  std::vector<WeightSpec> specs;
  const int64_t D = config.hidden_size;
  const auto F = static_cast<int64_t>(config.target_layer_ids.size()) * D;
  add_matrix(specs, "fc", D, F, false);
  add_norm(specs, "hidden_norm", D);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const auto prefix = fmt::format("layers.{}.", i);
    add_norm(specs, prefix + "input_layernorm", D);
    add_attention(specs, config, prefix, /*has_qk_norm=*/true, /*has_output_gate=*/false);
    add_mlp(specs, config, prefix);
  }
  add_norm(specs, "norm", D);
  return specs;
}

WeightMap load_weights(
    const formats::SafetensorsReader& reader,
    const std::vector<WeightSpec>& specs,
    torch::ScalarType dtype,
    const std::vector<std::string>& known_extras,
    const std::function<torch::Device(const WeightSpec&)>& place) {
  std::set<std::string> used(known_extras.begin(), known_extras.end());
  int64_t total_bytes = 0;
  for (const WeightSpec& spec : specs) {
    check_tensor(reader, spec);
    used.insert(spec.name);
    if (reader.dtype(spec.name) == kFloat8) used.insert(spec.name + kScaleSuffix);
    total_bytes += count_bytes(spec, dtype);
  }
  report_unused(reader, used);

  WeightMap weights;
  std::optional<Progress> progress;
  if (total_bytes >= kBytesWorthABar) progress.emplace("loading", total_bytes >> 20, "MiB");
  int64_t bytes = 0;
  for (const WeightSpec& spec : specs) {
    const auto wanted = spec.kind == WeightKind::kFloat32 ? torch::kFloat : dtype;
    auto tensor = reader.dtype(spec.name) == wanted ? reader.tensor(spec.name)
                                                    : convert(reader, spec.name, wanted);
    if (place) tensor = tensor.to(place(spec));
    weights[spec.name] = std::move(tensor);
    bytes += count_bytes(spec, dtype);
    if (progress) progress->update(bytes >> 20);
  }
  if (progress) progress->finish();
  return weights;
}

int64_t count_bytes(const WeightSpec& spec, torch::ScalarType dtype) {
  const auto kind = spec.kind == WeightKind::kFloat32 ? torch::kFloat : dtype;
  return c10::multiply_integers(spec.shape) * static_cast<int64_t>(c10::elementSize(kind));
}

std::vector<size_t> split_by_bytes(const std::vector<int64_t>& bytes, size_t num_devices) {
  const double total = static_cast<double>(std::accumulate(bytes.begin(), bytes.end(), int64_t{0}));
  std::vector<size_t> devices;
  double before = 0;
  for (const int64_t part : bytes) {
    // A part goes where its middle lies.
    const double middle = before + static_cast<double>(part) / 2;
    const auto device = static_cast<size_t>(middle / total * static_cast<double>(num_devices));
    devices.push_back(std::min(device, num_devices - 1));
    before += static_cast<double>(part);
  }
  return devices;
}

}  // namespace draftsmith::model
