// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "draftsmith/ops/block_methods.h"
#include "draftsmith/ops/kernels.h"
#include "draftsmith/ops/product.h"
#include "draftsmith/ops/storage.h"

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
  std::vector<std::vector<BlockTile>> tiles;  // of each row

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
    for (int64_t b = 0; b < B; ++b)
      tiles.push_back(plan_block_tiles(layout, visibility, b, rule.max_blocks(), cost));
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

/// Tensors of one row and key head, packed so that tiles are slices.
struct Head {
  Tensor query;  // [Q repeat, E]
  Tensor key;    // [S + Q, E], context first
  Tensor value;  // [S + Q, E]
};

Tensor pack_queries(const Tensor& tensor, const Problem& p, int64_t b, int64_t g) {
  return tensor[b].narrow(1, g * p.repeat, p.repeat).reshape({p.Q * p.repeat, p.E});
}

Head pack_head(const BlockAttentionInputs& in, const Problem& p, int64_t b, int64_t g) {
  return {
      pack_queries(in.query, p, b, g),
      torch::cat({in.context_key[b].select(1, g), in.block_key[b].select(1, g)}),
      torch::cat({in.context_value[b].select(1, g), in.block_value[b].select(1, g)})};
}

/// One tile's slices of a head.
struct TileView {
  int64_t context_begin, context, own_begin, own, row_begin, rows, width;

  TileView(const Problem& p, const BlockTile& tile)
      : context_begin(tile.context_begin),
        context(tile.context_end - tile.context_begin),
        own_begin(p.S + tile.first * p.K),
        own((tile.end - tile.first) * p.K),
        row_begin(tile.first * p.K * p.repeat),
        rows(own * p.repeat),
        width(pad_tile_columns(context + own)) {}

  Tensor take(const Tensor& from, Tensor& scratch) const {
    auto taken = scratch.narrow(0, 0, width);
    taken.narrow(0, 0, context).copy_(from.narrow(0, context_begin, context));
    taken.narrow(0, context, own).copy_(from.narrow(0, own_begin, own));
    taken.narrow(0, context + own, width - context - own).zero_();
    return taken;
  }
  /// Adds [width, E], its padding left out, to the places in [S + Q, E] that `take` reads.
  void add(const Tensor& tile_values, const Tensor& to) const {
    add_rows(tile_values, 0, to, context_begin, context);
    add_rows(tile_values, context, to, own_begin, own);
  }
  Tensor cells(const Tensor& scratch) const {
    return scratch.narrow(0, 0, rows * width).view({rows, width});
  }

 private:
  static void
  add_rows(const Tensor& values, int64_t first, const Tensor& sums, int64_t place, int64_t count) {
    add_to_sums(
        {.storage = storage_of(values),
         .values = values.narrow(0, first, count).const_data_ptr(),
         .sums = sums.narrow(0, place, count).mutable_data_ptr(),
         .count = count * values.size(1)});
  }
};

/// Arrays that the tiles of one thread go through. They have the size that any anchors could need, so
/// that a step takes the same memory for all of them.
struct Scratch {
  Tensor first, second;  // [rows x columns] of the largest tile
  Tensor key, value;     // [columns, E]

  Scratch(const Problem& p, int64_t b, const torch::TensorOptions& options, bool is_backward) {
    const TileRule rule{p.K, p.repeat};
    auto [cells, columns] = rule.bound(p.Q / p.K, p.S, p.visibility.window);
    for (const auto& tile : p.tiles[static_cast<size_t>(b)]) {
      const TileView view(p, tile);
      columns = std::max(columns, view.width);
      cells = std::max(cells, view.rows * view.width);
    }
    first = torch::empty({cells}, options);
    if (is_backward) second = torch::empty({cells}, options);
    key = torch::empty({columns, p.E}, options);
    value = torch::empty({columns, p.E}, options);
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
    const auto& tiles = p.tiles[static_cast<size_t>(b)];
    if (tiles.empty()) return;
    const Head head = pack_head(in, p, b, g);
    Scratch scratch(p, b, in.query.options(), false);
    double* sums = log_sum.data_ptr<double>() + (b * p.G + g) * p.Q * p.repeat;
    for (const auto& tile : tiles) {
      const TileView view(p, tile);
      const auto ranges = p.list_ranges(b, tile);
      auto scores = view.cells(scratch.first);
      product_out(
          scores, head.query.narrow(0, view.row_begin, view.rows),
          view.take(head.key, scratch.key).t());
      compute_block_softmax(
          {.rows =
               {.storage = storage_of(scores),
                .rows = view.rows,
                .width = view.width,
                .ranges = ranges.data(),
                .scale = p.scale},
           .scores = scores.data_ptr(),
           .log_sum = sums + view.row_begin});
      out[b]
          .narrow(0, tile.first * p.K, view.own)
          .narrow(1, g * p.repeat, p.repeat)
          .copy_(product(scores, view.take(head.value, scratch.value))
                     .view({view.own, p.repeat, p.E}));
    }
  });
  return out;
}

BlockAttentionInputs make_gradients(const BlockAttentionInputs& in) {
  return {
      torch::zeros_like(in.query), torch::zeros_like(in.context_key),
      torch::zeros_like(in.context_value), torch::zeros_like(in.block_key),
      torch::zeros_like(in.block_value)};
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
  const auto wide = in.query.options().dtype(
      in.query.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat);
  for_each_head(p, [&](int64_t b, int64_t g) {
    const auto& tiles = p.tiles[static_cast<size_t>(b)];
    if (tiles.empty()) return;
    const Head head = pack_head(in, p, b, g);
    Scratch scratch(p, b, in.query.options(), true);
    const auto out_grad = pack_queries(out_gradient, p, b, g);
    const auto delta = (out_grad.to(wide.dtype()) * pack_queries(out, p, b, g))
                           .sum(1)
                           .to(torch::kDouble)
                           .contiguous();
    const auto key_gradient = torch::zeros({p.S + p.Q, p.E}, wide);
    const auto value_gradient = torch::zeros({p.S + p.Q, p.E}, wide);
    const double* sums = log_sum.const_data_ptr<double>() + (b * p.G + g) * p.Q * p.repeat;
    for (const auto& tile : tiles) {
      const TileView view(p, tile);
      const auto ranges = p.list_ranges(b, tile);
      const auto query = head.query.narrow(0, view.row_begin, view.rows);
      const auto upstream = out_grad.narrow(0, view.row_begin, view.rows);
      const auto key = view.take(head.key, scratch.key);
      auto weights = view.cells(scratch.first);
      auto score_gradient = view.cells(scratch.second);
      product_out(weights, query, key.t());
      product_out(score_gradient, upstream, view.take(head.value, scratch.value).t());
      compute_block_softmax_gradient(
          {.rows =
               {.storage = storage_of(weights),
                .rows = view.rows,
                .width = view.width,
                .ranges = ranges.data(),
                .scale = p.scale},
           .scores = weights.data_ptr(),
           .log_sum = sums + view.row_begin,
           .delta = delta.const_data_ptr<double>() + view.row_begin,
           .gradient = score_gradient.data_ptr()});
      view.add(product(weights.t(), upstream), value_gradient);
      view.add(product(score_gradient.t(), query), key_gradient);
      gradients.query[b]
          .narrow(0, tile.first * p.K, view.own)
          .narrow(1, g * p.repeat, p.repeat)
          .copy_(product(score_gradient, key).view({view.own, p.repeat, p.E}));
    }
    gradients.context_key[b].select(1, g).copy_(key_gradient.narrow(0, 0, p.S));
    gradients.context_value[b].select(1, g).copy_(value_gradient.narrow(0, 0, p.S));
    gradients.block_key[b].select(1, g).copy_(key_gradient.narrow(0, p.S, p.Q));
    gradients.block_value[b].select(1, g).copy_(value_gradient.narrow(0, p.S, p.Q));
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
