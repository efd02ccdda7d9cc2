// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/short_conv.h"

#include "draftsmith/base/error.h"
#include "draftsmith/ops/checks.h"
#include "draftsmith/ops/kernels.h"
#include "draftsmith/ops/storage.h"

namespace draftsmith::ops {
namespace {

ConvSources make_sources(int64_t B, int64_t T, int64_t taps) {
  return {B, T, taps, std::vector<int64_t>(static_cast<size_t>(B * T * taps), kNoSource)};
}

}  // namespace

ConvSources span_sources(const std::vector<Span>& spans, int64_t B, int64_t T, int64_t taps) {
  auto sources = make_sources(B, T, taps);
  for (const Span& span : spans) {
    DS_CHECK(span.row < B && span.begin >= 0 && span.end <= T);
    for (int64_t t = span.begin; t < span.end; ++t)
      for (int64_t j = 0; j < taps; ++j)
        if (const int64_t from = t - taps + 1 + j; from >= span.begin)
          sources.index[static_cast<size_t>((span.row * T + t) * taps + j)] = from;
  }
  return sources;
}

ConvSources line_sources(int64_t B, int64_t T, int64_t taps) {
  auto sources = make_sources(B, T, taps);
  for (int64_t i = 0; i < B * T; ++i)
    for (int64_t j = 0; j < taps; ++j)
      sources.index[static_cast<size_t>(i * taps + j)] = i % T - taps + 1 + j;
  return sources;
}

ConvSources tree_sources(const TreeLayout& tree, int64_t taps) {
  auto sources = make_sources(tree.B, tree.T, taps);
  for (int64_t i = 0; i < tree.B * tree.T; ++i) {
    int64_t from = i % tree.T;
    for (int64_t j = taps - 1; j >= 0; --j) {
      sources.index[static_cast<size_t>(i * taps + j)] = from;
      // Above a root (parent -1) come -1, -2, ...: the window from its newest input on.
      from = from < 0 ? from - 1 : tree.parents[static_cast<size_t>(i / tree.T * tree.T + from)];
    }
  }
  return sources;
}

torch::Tensor short_conv_plain(
    const torch::Tensor& x,
    const torch::Tensor& weight,
    const torch::Tensor& window,
    const ConvSources& sources) {
  const auto [B, T, C] = dims<3>(x, "short_conv input");
  const auto [taps, Cw] = dims<2>(weight, "short_conv weight");
  const int64_t kept = window.defined() ? taps - 1 : 0;
  const int64_t rows = kept + T + 1;  // of a sequence: its window, its tokens, zeros
  std::vector<torch::Tensor> parts = {x, torch::zeros({B, 1, C}, x.options())};
  if (window.defined()) parts.insert(parts.begin(), window);
  const auto table = torch::cat(parts, 1).view({B * rows, C});
  auto index = torch::empty({taps, B * T}, torch::kLong);
  for (int64_t i = 0; i < B * T; ++i) {
    for (int64_t j = 0; j < taps; ++j) {
      const int64_t from = sources.index[static_cast<size_t>(i * taps + j)];
      const int64_t row = from >= -kept ? kept + from : rows - 1;
      index.data_ptr<int64_t>()[j * B * T + i] = i / T * rows + row;
    }
  }
  index = index.to(x.device());
  const auto type = x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  auto sums = torch::zeros({B * T, C}, x.options().dtype(type));
  for (int64_t j = 0; j < taps; ++j)
    sums.addcmul_(table.index_select(0, index[j]).to(type), weight[j].to(type));
  const auto rounded = sums.to(x.scalar_type()).to(type);
  return (rounded * rounded.sigmoid()).to(x.scalar_type()).view({B, T, C});
}

torch::Tensor short_conv(
    const torch::Tensor& x,
    const torch::Tensor& weight,
    const torch::Tensor& window,
    const ConvSources& sources) {
  const auto [B, T, C] = dims<3>(x, "short_conv input");
  const int64_t taps = sources.taps;
  check_shape(weight, {taps, C}, "short_conv weight");
  check_same_kind(weight, x, "short_conv weight", "input");
  if (window.defined()) {
    check_shape(window, {B, taps - 1, C}, "short_conv window");
    check_same_kind(window, x, "short_conv window", "input");
  }
  DS_CHECK(sources.B == B && sources.T == T && !needs_gradient({x, weight}));
  if (!x.is_cpu()) return short_conv_plain(x, weight, window, sources);
  const auto dense = x.contiguous();
  const auto filter = weight.contiguous();
  const auto before = window.defined() ? window.contiguous() : window;
  auto out = torch::empty_like(dense);
  compute_short_conv(
      {.storage = storage_of(x),
       .x = dense.const_data_ptr(),
       .window = window.defined() ? before.const_data_ptr() : nullptr,
       .weight = filter.const_data_ptr(),
       .sources = sources.index.data(),
       .B = B,
       .T = T,
       .C = C,
       .taps = taps,
       .out = out.data_ptr()});
  return out;
}

torch::Tensor advance_conv_window(
    const torch::Tensor& window,
    const torch::Tensor& x,
    const std::vector<std::vector<int64_t>>& paths) {
  const auto [B, kept, C] = dims<3>(window, "conv window");
  const int64_t T = x.size(1);
  DS_CHECK(static_cast<int64_t>(paths.size()) == B && x.size(0) == B && x.size(2) == C);
  std::vector<int64_t> old_rows;
  std::vector<int64_t> new_rows;
  std::vector<uint8_t> is_new;
  for (int64_t b = 0; b < B; ++b) {
    const auto& path = paths[static_cast<size_t>(b)];
    for (int64_t i = 0; i < kept; ++i) {
      const int64_t place = static_cast<int64_t>(path.size()) + i;  // in window + path
      is_new.push_back(place >= kept);
      old_rows.push_back(b * kept + (place < kept ? place : 0));
      new_rows.push_back(place < kept ? 0 : b * T + path[static_cast<size_t>(place - kept)]);
    }
  }
  const auto select = [&](const torch::Tensor& from, const std::vector<int64_t>& rows) {
    return from.reshape({-1, C}).index_select(0, torch::tensor(rows, torch::kLong).to(x.device()));
  };
  const auto chosen = torch::tensor(is_new, torch::kByte).to(torch::kBool).to(x.device());
  return torch::where(chosen.unsqueeze(1), select(x, new_rows), select(window, old_rows))
      .view({B, kept, C});
}

}  // namespace draftsmith::ops
