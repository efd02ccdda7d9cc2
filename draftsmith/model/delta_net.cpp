// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/model/delta_net.h"

#include <numeric>

#include "draftsmith/base/error.h"
#include "draftsmith/ops/rms_norm.h"
#include "draftsmith/ops/short_conv.h"

namespace draftsmith::model {
namespace {

/// Paths of rows that take their first tokens in order.
std::vector<std::vector<int64_t>> make_lines(const std::vector<int64_t>& row_tokens) {
  std::vector<std::vector<int64_t>> paths;
  for (const int64_t count : row_tokens) {
    auto& path = paths.emplace_back(static_cast<size_t>(count));
    std::iota(path.begin(), path.end(), int64_t{0});
  }
  return paths;
}

std::vector<ops::Span> make_spans(const std::vector<int64_t>& row_tokens) {
  std::vector<ops::Span> spans;
  for (size_t b = 0; b < row_tokens.size(); ++b)
    spans.push_back({static_cast<int64_t>(b), 0, row_tokens[b]});
  return spans;
}

}  // namespace

DeltaNet DeltaNet::bind(
    const WeightMap& weights,
    const std::string& prefix,
    const formats::TargetConfig& config) {
  const auto linear = [&](const char* name) {
    return Linear{weights.at(prefix + name + ".weight"), {}};
  };
  DeltaNet net;
  net.in_proj_qkv = linear("in_proj_qkv");
  net.in_proj_z = linear("in_proj_z");
  net.in_proj_b = linear("in_proj_b");
  net.in_proj_a = linear("in_proj_a");
  net.out_proj = linear("out_proj");
  net.conv = weights.at(prefix + "conv1d.weight").squeeze(1).t().contiguous();
  net.log_decay = weights.at(prefix + "A_log");
  net.decay_bias = weights.at(prefix + "dt_bias");
  net.norm = weights.at(prefix + "norm.weight");
  net.shape = {
      config.linear.num_key_heads, config.linear.num_value_heads, config.linear.key_head_dim,
      config.linear.value_head_dim};
  net.eps = config.rms_norm_eps;
  return net;
}

ops::DeltaInputs DeltaNet::make_inputs(const torch::Tensor& x, const torch::Tensor& mixed) const {
  // In float64, because libtorch's vectors and its loop over the rest differ in float32's last bit:
  // a token's gates would depend on how many tokens come with it.
  const auto wide = [](const torch::Tensor& value) { return value.to(torch::kDouble); };
  const auto step_size = torch::softplus(wide(in_proj_a(x)) + wide(decay_bias));
  const auto decay = step_size * wide(log_decay).exp().neg();
  const auto beta = wide(in_proj_b(x)).sigmoid().to(x.scalar_type());
  return {mixed, decay.to(torch::kFloat), beta.to(torch::kFloat), shape};
}

torch::Tensor DeltaNet::finish(const torch::Tensor& x, const torch::Tensor& values) const {
  const auto gate = in_proj_z(x).view(values.sizes());
  return out_proj(ops::gated_rms_norm(values, norm, gate, eps).flatten(2));
}

torch::Tensor DeltaNet::run_spans(const torch::Tensor& x, const std::vector<ops::Span>& spans)
    const {
  const auto sources = ops::span_sources(spans, x.size(0), x.size(1), taps());
  const auto mixed = ops::short_conv(in_proj_qkv(x), conv, {}, sources);
  return finish(x, ops::delta_rule_chunked(make_inputs(x, mixed), spans));
}

torch::Tensor DeltaNet::prefill(
    const torch::Tensor& x,
    const std::vector<int64_t>& row_tokens,
    DeltaState& state) const {
  const auto spans = make_spans(row_tokens);
  const auto sources = ops::span_sources(spans, x.size(0), x.size(1), taps());
  const auto raw = in_proj_qkv(x);
  const auto mixed = ops::short_conv(raw, conv, {}, sources);
  const auto values = ops::delta_rule_chunked(make_inputs(x, mixed), spans, state.state);
  state.window = ops::advance_conv_window(state.window, raw, make_lines(row_tokens));
  return finish(x, values);
}

torch::Tensor DeltaNet::step(
    const torch::Tensor& x,
    const std::vector<int64_t>& row_tokens,
    DeltaState& state) const {
  const auto sources = ops::line_sources(x.size(0), x.size(1), taps());
  const auto raw = in_proj_qkv(x);
  const auto mixed = ops::short_conv(raw, conv, state.window, sources);
  const auto values = ops::delta_rule_recurrent(make_inputs(x, mixed), row_tokens, state.state);
  state.window = ops::advance_conv_window(state.window, raw, make_lines(row_tokens));
  return finish(x, values);
}

torch::Tensor DeltaNet::verify(
    const torch::Tensor& x,
    const ops::TreeLayout& tree,
    const DeltaState& state,
    PendingDelta& pending) const {
  const auto raw = in_proj_qkv(x);
  const auto mixed =
      ops::short_conv(raw, conv, state.window, ops::tree_sources(tree, taps()));
  const auto inputs = make_inputs(x, mixed);
  pending = {raw, mixed, inputs.decay, inputs.beta};
  return finish(x, ops::delta_rule_tree(inputs, tree, state.state));
}

}  // namespace draftsmith::model
