// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/eval/layout_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include <ATen/CPUGeneratorImpl.h>

#include "draftsmith/base/error.h"
#include "draftsmith/data/draft_blocks.h"
#include "draftsmith/formats/safetensors.h"

namespace draftsmith::eval {
namespace {

constexpr uint64_t kSeed = 1;
constexpr int64_t kShortestContext = 64;  // tokens

/// |left - right| / |right|; infinite if anything is not a number.
double relative_difference(const torch::Tensor& left, const torch::Tensor& right) {
  const auto wanted = right.to(torch::kDouble);
  const double share = ((left.to(torch::kDouble) - wanted).norm() / wanted.norm()).item<double>();
  return std::isfinite(share) ? share : std::numeric_limits<double>::infinity();
}

/// Weights in float32: what is compared is the layouts, not the rounding of bfloat16 sums.
model::Drafter as_float(const model::Drafter& drafter) {
  model::WeightMap weights;
  for (const auto& [name, tensor] : drafter.parameters())
    weights[name] = tensor.detach().to(torch::kFloat);
  return {drafter.config(), std::move(weights)};
}

/// The parts of a config that decide what is served but not what the states are.
std::vector<std::pair<std::string, torch::Tensor>> hidden_choices(
    const formats::DrafterConfig& config) {
  const auto number = [](int64_t value) { return torch::tensor({value}, torch::kLong); };
  return {
      {"block_size", number(config.block_size)},
      {"mask_token_id", number(config.mask_token_id)},
      {"target_layer_ids", torch::tensor(config.target_layer_ids, torch::kLong)},
      {"vocab_size", number(config.vocab_size)},
      {"num_hidden_layers", number(config.num_layers)}};
}

std::string as_text(const torch::Tensor& values) {
  const auto flat = values.contiguous();
  const int64_t* begin = flat.data_ptr<int64_t>();
  return fmt::format("{}", std::vector<int64_t>(begin, begin + flat.numel()));
}

}  // namespace

LayoutInputs make_layout_inputs(const formats::DrafterConfig& config) {
  const int64_t K = config.block_size;
  const int64_t D = config.hidden_size;
  const auto F = static_cast<int64_t>(config.target_layer_ids.size()) * D;
  std::set<int64_t> anchors = {0, 1, K, kShortestContext};
  if (config.has_sliding_layers()) {
    const int64_t window = config.sliding_window;
    anchors.insert({std::max<int64_t>(window - K, 0), window - 1, window, window + K});
  }
  const int64_t S = *anchors.rbegin() + 1;
  const auto N = static_cast<int64_t>(anchors.size());
  auto generator = at::make_generator<at::CPUGeneratorImpl>(kSeed);
  LayoutInputs inputs;
  inputs.anchors = torch::tensor(std::vector<int64_t>(anchors.begin(), anchors.end()), torch::kLong)
                       .view({1, N});
  inputs.embedded = torch::empty({1, N * K, D}).normal_(0, 1, generator);
  inputs.features = torch::empty({1, S, F}).normal_(0, 1, generator);
  return inputs;
}

torch::Tensor training_states(const model::Drafter& drafter, const LayoutInputs& inputs) {
  const at::NoGradGuard no_grad;
  const int64_t S = inputs.features.size(1);
  data::BlockRows rows;
  rows.ids = torch::zeros({1, S}, torch::kLong);
  rows.mask = torch::ones({1, S}, torch::kByte);
  const data::Anchors anchors{inputs.anchors, torch::ones_like(inputs.anchors, torch::kBool)};
  return drafter.forward(
      inputs.embedded, inputs.features,
      data::make_draft_blocks(rows, anchors, drafter.block_rule(0)));
}

torch::Tensor decoding_states(const model::Drafter& drafter, const LayoutInputs& inputs) {
  const int64_t K = drafter.config().block_size;
  auto cache = drafter.make_cache(1, inputs.features.size(1));
  int64_t length = 0;
  std::vector<torch::Tensor> states;
  for (int64_t n = 0; n < inputs.anchors.size(1); ++n) {
    const int64_t anchor = inputs.anchors[0][n].item<int64_t>();
    if (anchor > length)
      drafter.append_context(cache, inputs.features.narrow(1, length, anchor - length));
    length = anchor;
    states.push_back(drafter.draft(inputs.embedded.narrow(1, n * K, K), cache));
  }
  return torch::cat(states, 1);
}

double layout_tolerance(const formats::DrafterConfig& config, const LayoutInputs& inputs) {
  const int64_t longest = std::max(
      {inputs.features.size(1), inputs.features.size(2), config.intermediate_size,
       config.num_heads * config.head_dim});
  return 4 * static_cast<double>(std::numeric_limits<float>::epsilon()) *
         std::sqrt(static_cast<double>(longest));
}

bool LayoutReport::is_good() const {
  return config_differences.empty() && export_difference <= tolerance &&
         layout_difference <= tolerance;
}

void write_layout_case(const std::filesystem::path& path, const model::Drafter& drafter) {
  const auto inputs = make_layout_inputs(drafter.config());
  formats::NamedTensors tensors = {
      {"embedded", inputs.embedded},
      {"features", inputs.features},
      {"anchors", inputs.anchors},
      {"hidden", training_states(as_float(drafter), inputs)}};
  for (const auto& [name, value] : hidden_choices(drafter.config()))
    tensors.emplace_back(name, value);
  formats::write_safetensors(path, tensors);
}

LayoutReport check_exported_folder(
    const std::filesystem::path& folder,
    const std::filesystem::path& layout_case) {
  const auto reader = formats::SafetensorsReader::open_file(layout_case);
  const auto drafter = model::Drafter::load(folder, torch::kFloat);
  LayoutReport report;
  for (const auto& [name, value] : hidden_choices(drafter.config())) {
    const auto wanted = reader.tensor(name);
    if (!value.equal(wanted))
      report.config_differences.push_back(
          fmt::format("{}: expected {}, got {}", name, as_text(wanted), as_text(value)));
  }
  if (!report.config_differences.empty()) return report;  // the inputs would not fit
  const LayoutInputs inputs{
      reader.tensor("embedded"), reader.tensor("features"), reader.tensor("anchors")};
  const auto states = training_states(drafter, inputs);
  report.export_difference = relative_difference(states, reader.tensor("hidden"));
  report.layout_difference = relative_difference(decoding_states(drafter, inputs), states);
  report.tolerance = layout_tolerance(drafter.config(), inputs);
  return report;
}

}  // namespace draftsmith::eval
