// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "draftsmith/ops/block_methods.h"
#include "draftsmith/ops/kernels.h"
#include "draftsmith/ops/product.h"
#include "draftsmith/ops/storage.h"
#include "draftsmith/ops/tile_rows.h"

namespace draftsmith::ops {
namespace {

using torch::Tensor;

/// What all heads of a call share.
struct Problem {
  int64_t B, S, Q, H, G, E, K;
  int64_t repeat;  // query heads per key head
  double scale;
  BlockLayout layout;
  BlockVisibility visibility;
  std::vector<RowTiles> rows;

  Problem(const BlockAttentionInputs& in, BlockLayout where, BlockVisibility seen)
      : B(in.query.size(0)),
        S(in.context_key.size(1)),
        Q(in.query.size(1)),
        H(in.query.size(2)),
        G(in.context_key.size(2)),
        E(in.query.size(3)),
        K(where.block_size),
        repeat(H / G),
        scale(1 / std::sqrt(static_cast<double>(E))),
        layout(std::move(where)),
        visibility(seen) {
    const TileRule rule{K, repeat};
    const auto cost = [&](int64_t blocks, int64_t context, double /*seen*/) {
      return rule.cost(blocks, context);
    };
    const auto bounds = rule.bound(Q / K, S, visibility.window);
    for (int64_t b = 0; b < B; ++b)
      rows.push_back(measure_tiles(
          plan_block_tiles(layout, visibility, b, rule.max_blocks(), cost), rule, bounds));
  }

  /// Columns that each row of a tile sees: [rows, 4], rows ordered (block, slot, head).
  std::vector<int64_t> list_ranges(int64_t b, const BlockTile& tile) const {
    const int64_t N = layout.anchors.size(1);
    const int64_t context = tile.context_end - tile.context_begin;
    std::vector<int64_t> ranges;
    for (int64_t n = tile.first; n < tile.end; ++n) {
      const int64_t anchor = layout.anchors.const_data_ptr<int64_t>()[b * N + n];
      const int64_t begin = layout.context_begin.const_data_ptr<int64_t>()[b * N + n];
      for (int64_t k = 0; k < K; ++k) {
        const int64_t lo = std::min(anchor, first_visible(anchor + k, begin, visibility.window));
        const int64_t own = context + (n - tile.first) * K;
        for (int64_t j = 0; j < repeat; ++j) {
          ranges.insert(
              ranges.end(), {lo - tile.context_begin, anchor - tile.context_begin, own,
                             own + (visibility.is_causal_block ? k + 1 : K)});
        }
      }
    }
    return ranges;
  }
};

Tensor pack_queries(const Tensor& tensor, const Problem& p, int64_t b, int64_t g) {
  return tensor[b].narrow(1, g * p.repeat, p.repeat).reshape({p.Q * p.repeat, p.E});
}

TileRows
pack_rows(const Tensor& context, const Tensor& own, const Problem& p, int64_t b, int64_t g) {
  const int64_t held = p.rows[static_cast<size_t>(b)].held_rows;
  return {context[b].select(1, g), own[b].select(1, g), held};
}

Tensor make_cells(const Tensor& like, const Problem& p, int64_t b) {
  return torch::empty({p.rows[static_cast<size_t>(b)].cells}, like.options());
}

/// One tile's slices of a head.
struct TileView {
  TileColumns columns;
  int64_t row_begin, rows;

  TileView(const Problem& p, const BlockTile& tile)
      : columns(list_columns(tile, p.K)),
        row_begin(columns.own_begin * p.repeat),
        rows(columns.own * p.repeat) {}

  Tensor cells(const Tensor& scratch) const {
    return scratch.narrow(0, 0, rows * columns.width).view({rows, columns.width});
  }
  /// `values` [rows, E] to the tile's slots of a query head's tensor.
  void put_rows(const Tensor& values, const Tensor& all, const Problem& p, int64_t b, int64_t g)
      const {
    all[b]
        .narrow(0, columns.own_begin, columns.own)
        .narrow(1, g * p.repeat, p.repeat)
        .copy_(values.view({columns.own, p.repeat, p.E}));
  }
  /// Of `values` [width, E]: the context's to their sums, the slots' to their gradient.
  void put_columns(const Tensor& values, ContextSums& sums, const Tensor& own) const {
    sums.add(values.narrow(0, 0, columns.context), columns.context_begin);
    own.narrow(0, columns.own_begin, columns.own)
        .copy_(values.narrow(0, columns.context, columns.own));
  }
  BlockRows describe(const Tensor& scores, const std::vector<int64_t>& ranges, const Problem& p)
      const {
    return {
        .storage = storage_of(scores),
        .rows = rows,
        .width = columns.width,
        .ranges = ranges.data(),
        .scale = p.scale};
  }
};

/// Calls `run(b, g)` for every row and key head, each in one thread.
template <class Run>
void for_each_head(const Problem& p, const Run& run) {
  at::parallel_for(0, p.B * p.G, 1, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_grad;
    for (int64_t i = begin; i < end; ++i)
      run(i / p.G, i % p.G);
  });
}

Tensor attend(const BlockAttentionInputs& in, const Problem& p, const Tensor& log_sum) {
  auto out = torch::zeros_like(in.query);
  for_each_head(p, [&](int64_t b, int64_t g) {
    const auto& tiles = p.rows[static_cast<size_t>(b)].tiles;
    if (tiles.empty()) return;
    const auto queries = pack_queries(in.query, p, b, g);
    auto keys = pack_rows(in.context_key, in.block_key, p, b, g);
    auto values = pack_rows(in.context_value, in.block_value, p, b, g);
    const auto scratch = make_cells(in.query, p, b);
    double* sums = log_sum.data_ptr<double>() + (b * p.G + g) * p.Q * p.repeat;
    for (const auto& tile : tiles) {
      const TileView view(p, tile);
      const auto ranges = p.list_ranges(b, tile);
      auto scores = view.cells(scratch);
      product_out(
          scores, queries.narrow(0, view.row_begin, view.rows), keys.take(view.columns).t());
      compute_block_softmax(
          {.rows = view.describe(scores, ranges, p),
           .scores = scores.data_ptr(),
           .log_sum = sums + view.row_begin});
      view.put_rows(product(scores, values.take(view.columns)), out, p, b, g);
    }
  });
  return out;
}

/// The context's are written whole later on.
BlockAttentionInputs make_gradients(const BlockAttentionInputs& in) {
  return {
      torch::zeros_like(in.query), torch::empty_like(in.context_key),
      torch::empty_like(in.context_value), torch::zeros_like(in.block_key),
      torch::zeros_like(in.block_value)};
}

/// Sums of out x out gradient over each row, in float32 or wider.
Tensor sum_products(const Tensor& out, const Tensor& out_gradient) {
  const auto wide = out.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  return (out_gradient.to(wide) * out).sum(1).to(torch::kDouble).contiguous();
}

/// Gradients of all inputs. Those of the context are summed over tiles in the order of the tiles,
/// in float32 or wider.
BlockAttentionInputs attend_backward(
    const BlockAttentionInputs& in,
    const Problem& p,
    const Tensor& log_sum,
    const Tensor& out,
    const Tensor& out_gradient) {
  auto gradients = make_gradients(in);
  for_each_head(p, [&](int64_t b, int64_t g) {
    const auto& row = p.rows[static_cast<size_t>(b)];
    const auto of_head = [&](const Tensor& tensor) { return tensor[b].select(1, g); };
    if (row.tiles.empty()) {
      of_head(gradients.context_key).zero_();
      of_head(gradients.context_value).zero_();
      return;
    }
    const auto queries = pack_queries(in.query, p, b, g);
    const auto upstreams = pack_queries(out_gradient, p, b, g);
    const auto delta = sum_products(pack_queries(out, p, b, g), upstreams);
    auto keys = pack_rows(in.context_key, in.block_key, p, b, g);
    auto values = pack_rows(in.context_value, in.block_value, p, b, g);
    ContextSums key_sums(of_head(gradients.context_key), row.held_rows);
    ContextSums value_sums(of_head(gradients.context_value), row.held_rows);
    const auto first = make_cells(in.query, p, b), second = make_cells(in.query, p, b);
    const double* sums = log_sum.const_data_ptr<double>() + (b * p.G + g) * p.Q * p.repeat;
    for (size_t i = 0; i < row.tiles.size(); ++i) {
      const TileView view(p, row.tiles[i]);
      const auto ranges = p.list_ranges(b, row.tiles[i]);
      const auto query = queries.narrow(0, view.row_begin, view.rows);
      const auto upstream = upstreams.narrow(0, view.row_begin, view.rows);
      const auto key = keys.take(view.columns);
      auto weights = view.cells(first);
      auto score_gradient = view.cells(second);
      product_out(weights, query, key.t());
      product_out(score_gradient, upstream, values.take(view.columns).t());
      compute_block_softmax_gradient(
          {.rows = view.describe(weights, ranges, p),
           .scores = weights.data_ptr(),
           .log_sum = sums + view.row_begin,
           .delta = delta.const_data_ptr<double>() + view.row_begin,
           .gradient = score_gradient.data_ptr()});
      value_sums.finish(row.first_needed[i]);
      key_sums.finish(row.first_needed[i]);
      view.put_columns(product(weights.t(), upstream), value_sums, of_head(gradients.block_value));
      view.put_columns(product(score_gradient.t(), query), key_sums, of_head(gradients.block_key));
      view.put_rows(product(score_gradient, key), gradients.query, p, b, g);
    }
    value_sums.finish(p.S);
    key_sums.finish(p.S);
  });
  return gradients;
}

struct TiledAttention : torch::autograd::Function<TiledAttention> {
  static Tensor forward(
      torch::autograd::AutogradContext* context,
      const Tensor& query,
      const Tensor& context_key,
      const Tensor& context_value,
      const Tensor& block_key,
      const Tensor& block_value,
      const BlockLayout& layout,
      const BlockVisibility& visibility) {
    const BlockAttentionInputs in{query, context_key, context_value, block_key, block_value};
    const Problem problem(in, layout, visibility);
    const auto log_sum =
        torch::empty({problem.B, problem.G, problem.Q, problem.repeat}, torch::kDouble);
    const auto out = attend(in, problem, log_sum);
    save_call(context, in, layout, visibility, {out, log_sum});
    return out;
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list upstream) {
    const SavedCall call(context);
    const Problem problem(call.inputs, call.layout, call.visibility);
    const auto gradients =
        attend_backward(call.inputs, problem, call.more[1], call.more[0], upstream[0].contiguous());
    return {
        gradients.query,
        gradients.context_key,
        gradients.context_value,
        gradients.block_key,
        gradients.block_value,
        Tensor(),
        Tensor()};
  }
};

}  // namespace

Tensor attend_in_tiles(
    const BlockAttentionInputs& in,
    const BlockLayout& layout,
    const BlockVisibility& visibility) {
  const BlockLayout dense{
      layout.anchors.contiguous(), layout.keep.to(torch::kBool).contiguous(),
      layout.context_begin.contiguous(), layout.block_size};
  return TiledAttention::apply(
      in.query, in.context_key, in.context_value, in.block_key, in.block_value, dense, visibility);
}

}  // namespace draftsmith::ops
