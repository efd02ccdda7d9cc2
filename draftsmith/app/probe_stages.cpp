// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/app/probe_stages.h"

#include <fmt/format.h>

#include <numeric>

#include <torch/csrc/autograd/autograd.h>

#include "draftsmith/base/error.h"
#include "draftsmith/eval/draft_tree.h"
#include "draftsmith/eval/speculative_decode.h"
#include "draftsmith/model/drafter_init.h"
#include "draftsmith/ops/checks.h"
#include "draftsmith/ops/lm_head_loss.h"
#include "draftsmith/train/objective.h"
#include "draftsmith/train/step.h"

namespace draftsmith::app {
namespace {

torch::Tensor as_mask(const torch::Tensor& tensor) { return tensor.to(torch::kByte); }

/// Values [1] in float32.
torch::Tensor as_value(double value) { return torch::full({1}, value, torch::kFloat); }

data::BlockRows read_rows(const ProbeInput& input) {
  data::BlockRows rows{input.ids("input_ids", 2), input.get("loss_mask", 2), {}};
  if (input.has("document_ids")) rows.document_ids = input.ids("document_ids", 2);
  return rows;
}

data::DraftBlocks
read_blocks(const ProbeInput& input, const formats::DrafterConfig& config, double decay_gamma) {
  const auto rows = read_rows(input);
  check_ids(rows.ids, config.vocab_size);
  return data::make_draft_blocks(
      rows, {input.ids("anchors", 2), input.get("keep", 2)},
      {config.block_size, config.mask_token_id, decay_gamma});
}

std::vector<int64_t> read_lengths(const ProbeInput& input, int64_t B, int64_t S) {
  std::vector<int64_t> lengths(static_cast<size_t>(B), S);
  if (!input.has("lengths")) return lengths;
  const auto given = input.ids("lengths", 1);
  ops::check_shape(given, {B}, "lengths");
  for (int64_t b = 0; b < B; ++b) {
    auto& length = lengths[static_cast<size_t>(b)];
    length = given[b].item<int64_t>();
    if (length < 1 || length > S) {
      throw ShapeError(
          {.what = "lengths",
           .expected = fmt::format("1 to {}", S),
           .got = fmt::format("{}", length),
           .where = fmt::format("row {}", b)});
    }
  }
  return lengths;
}

}  // namespace

ProbeInput::ProbeInput(const std::string& path)
    : reader_(formats::SafetensorsReader::open_file(path)) {}

torch::Tensor ProbeInput::get(const std::string& name, int64_t rank) const {
  if (!reader_.has(name)) {
    throw ShapeError(
        {.what = name,
         .expected = "a tensor of this name",
         .got = "none",
         .where = reader_.where()});
  }
  const auto tensor = reader_.tensor(name);
  ops::check_rank(tensor, rank, name);
  return tensor;
}

torch::Tensor ProbeInput::ids(const std::string& name, int64_t rank) const {
  const auto tensor = get(name, rank);
  if (!at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false)) {
    throw ShapeError(
        {.what = name,
         .expected = "whole numbers",
         .got = c10::toString(tensor.scalar_type()),
         .where = reader_.where()});
  }
  return tensor.to(torch::kLong);
}

void check_ids(const torch::Tensor& ids, int64_t vocab_size) {
  const auto flat = ids.contiguous().view({-1});
  const int64_t* begin = flat.data_ptr<int64_t>();
  data::check_token_ids({begin, begin + flat.numel()}, vocab_size, "input_ids");
}

formats::NamedTensors probe_target(const ProbeInput& input, const RunConfig& config) {
  const auto ids = input.ids("input_ids", 2);
  const auto [B, S] = ops::dims<2>(ids, "input_ids");
  const auto lengths = read_lengths(input, B, S);
  const auto target = model::Target::load(config.target);
  check_ids(ids, target.config().vocab_size);
  const int64_t L = target.config().num_layers;
  std::vector<int64_t> layer_ids(static_cast<size_t>(L));
  std::iota(layer_ids.begin(), layer_ids.end(), 0);
  const auto states = target.forward(ids, layer_ids);
  auto hidden = states.features.view({B, S, L, target.config().hidden_size})
                    .permute({2, 0, 1, 3})
                    .contiguous();
  auto last = states.last.contiguous();
  auto logits = target.logits(last);
  for (int64_t b = 0; b < B; ++b) {
    const int64_t length = lengths[static_cast<size_t>(b)];
    hidden.select(1, b).narrow(1, length, S - length).zero_();
    last.select(0, b).narrow(0, length, S - length).zero_();
    logits.select(0, b).narrow(0, length, S - length).zero_();
  }
  return {{"hidden_states", hidden}, {"final", last}, {"logits", logits}};
}

formats::NamedTensors probe_blocks(const ProbeInput& input, const RunConfig& config) {
  const auto drafter = formats::read_drafter_config(config.drafter.init);
  const auto blocks = read_blocks(input, drafter, config.loss.block_decay());
  const int64_t S = blocks.context_positions.size(1);
  const auto full = ops::make_block_mask(blocks.layout, {0, drafter.is_causal.value_or(false)}, S);
  formats::NamedTensors output = {
      {"block_ids", blocks.block_ids},
      {"positions", blocks.positions},
      {"labels", blocks.labels},
      {"weights", blocks.weights},
      {"teacher_rows", blocks.teacher_rows},
      {"mask_full", as_mask(full)}};
  if (drafter.has_sliding_layers()) {
    const auto sliding = ops::make_block_mask(
        blocks.layout, {drafter.sliding_window, drafter.is_causal.value_or(true)}, S);
    output.emplace_back("mask_sliding", as_mask(sliding));
  }
  return output;
}

formats::NamedTensors
probe_drafter(const ProbeInput& input, const RunConfig& config, bool has_gradients) {
  const auto rows = read_rows(input);
  const auto [B, S] = ops::dims<2>(rows.ids, "input_ids");
  const auto target = model::Target::load(config.target);
  check_ids(rows.ids, target.config().vocab_size);
  const auto drafter = model::make_drafter(config.drafter, config.target, target, {}, 0);
  const auto& layer_ids = drafter.config().target_layer_ids;
  pipeline::TrainBatch batch;
  batch.blocks = read_blocks(input, drafter.config(), config.loss.block_decay());

  const int64_t D = target.config().hidden_size;
  const bool needs_teacher = config.loss.kl_weight > 0;
  model::TargetStates states;
  if (!input.has("target_hidden") || (needs_teacher && !input.has("teacher_hidden")))
    states = target.forward(rows.ids, layer_ids, rows.document_ids);
  const auto take = [&](const char* name, int64_t width, const torch::Tensor& computed) {
    const auto tensor = input.has(name) ? input.get(name, 3) : computed;
    ops::check_shape(tensor, {B, S, width}, name);
    return tensor.to(drafter.dtype());
  };
  batch.features =
      take("target_hidden", D * static_cast<int64_t>(layer_ids.size()), states.features);
  if (needs_teacher) batch.teacher_states = take("teacher_hidden", D, states.last);
  batch.embedded = target.embed(batch.blocks.block_ids.flatten(1)).to(drafter.dtype());

  const auto step =
      train::run_micro_step(drafter, target.lm_head(), batch, config.loss, has_gradients,
      {model::parse_attention_method(config.attention.method),
       config.memory.recompute == "layer"});
  const double weight_sum = step.sums.weight_sum;
  formats::NamedTensors output = {
      {"hidden", step.hidden},
      {"loss", as_value(step.sums.loss())},
      {"weight_sum", as_value(weight_sum)},
      {"accuracy", as_value(step.sums.accuracy())}};
  for (size_t i = 0; i < step.gradients.size(); ++i) {
    const auto& [name, parameter] = drafter.parameters()[i];
    const auto gradient =
        step.gradients[i].defined() ? step.gradients[i] : torch::zeros_like(parameter);
    output.emplace_back(
        "grad." + name, gradient.detach().to(torch::kFloat) / (weight_sum > 0 ? weight_sum : 1));
  }
  return output;
}

formats::NamedTensors
probe_loss(const ProbeInput& input, const RunConfig& config, torch::ScalarType dtype) {
  const auto statistics = dtype == torch::kDouble ? torch::kDouble : torch::kFloat;
  ops::LossRows rows;
  rows.hidden = input.get("hidden", 2).to(dtype).clone().set_requires_grad(true);
  rows.labels = input.ids("labels", 1);
  rows.weights = input.get("weights", 1).to(statistics);
  if (input.has("teacher_hidden")) {
    rows.teacher_states = input.get("teacher_hidden", 2).to(dtype);
    ops::check_shape(rows.teacher_states, rows.hidden.sizes(), "teacher_hidden");
    rows.teacher_rows = torch::arange(rows.hidden.size(0), torch::kLong);
  }
  const auto lm_head = input.get("lm_head", 2).to(dtype);
  const auto terms = ops::lm_head_loss(
      rows, lm_head,
      train::loss_options(config.loss, lm_head.size(0), lm_head.element_size()));
  const auto gradient = torch::autograd::grad({terms.loss_sum}, {rows.hidden})[0];
  const double weight_sum = terms.weight_sum.item<double>();
  const double scale = weight_sum > 0 ? 1 / weight_sum : 0;
  return {
      {"ce", terms.ce},
      {"kl", terms.kl},
      {"cap", terms.cap},
      {"per_row", terms.row_loss.detach()},
      {"loss", (terms.loss_sum.detach() * scale).view({1})},
      {"dhidden", gradient * scale}};
}

formats::NamedTensors probe_tree(const ProbeInput& input, int64_t budget) {
  const auto tree = eval::build_draft_tree(input.get("logits", 2).to(torch::kFloat), budget);
  return {
      {"tokens", torch::tensor(tree.tokens, torch::kLong)},
      {"depths", torch::tensor(tree.depths, torch::kLong)},
      {"parents", torch::tensor(tree.parents, torch::kLong)}};
}

formats::NamedTensors probe_decode(const ProbeInput& input, const RunConfig& config) {
  const auto prompt = input.ids("prompt", 1).contiguous();
  const auto target = model::Target::load(config.target);
  check_ids(prompt, target.config().vocab_size);
  const auto drafter = model::make_drafter(config.drafter, config.target, target, {}, 0);
  const eval::DecodeLimits limits{
      config.eval.max_new_tokens, config.eval.ignore_stop
                                      ? std::vector<int64_t>{}
                                      : formats::read_stop_token_ids(config.target.path)};
  std::vector<int64_t> ids(prompt.data_ptr<int64_t>(), prompt.data_ptr<int64_t>() + prompt.numel());
  if (ids.empty())
    throw ShapeError({.what = "prompt", .expected = "at least one id", .got = "none"});
  const auto picker = make_picker(config.eval);
  eval::DrafterSource source(target, drafter, make_draft_options(config.eval));
  const auto answer =
      eval::decode_speculatively(
          target, source, {ids}, limits, {.picker = picker, .runs_raw_rounds = true})
          .answers.front();
  ids.insert(ids.end(), answer.tokens.begin(), answer.tokens.end());
  std::vector<int64_t> lengths;
  for (const auto& round : answer.rounds)
    lengths.push_back(static_cast<int64_t>(round.size()));
  return {
      {"output", torch::tensor(ids, torch::kLong)},
      {"acceptance_lengths", torch::tensor(lengths, torch::kLong)}};
}

}  // namespace draftsmith::app
