// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/tile_rows.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "draftsmith/ops/kernels.h"
#include "draftsmith/ops/storage.h"

namespace draftsmith::ops {

using torch::Tensor;

TileColumns list_columns(const BlockTile& tile, int64_t block_size) {
  const int64_t context = tile.context_end - tile.context_begin;
  const int64_t own = (tile.end - tile.first) * block_size;
  return {
      tile.context_begin, context, tile.first * block_size, own, pad_tile_columns(context + own)};
}

RowTiles
measure_tiles(std::vector<BlockTile> tiles, const TileRule& rule, const TileRule::Bounds& bounds) {
  RowTiles row{std::move(tiles), {}, bounds.cells, bounds.held_rows};
  row.first_needed.resize(row.tiles.size());
  int64_t first = std::numeric_limits<int64_t>::max();
  for (size_t i = row.tiles.size(); i-- > 0;)
    row.first_needed[i] = first = std::min(first, row.tiles[i].context_begin);
  int64_t end = 0;
  for (size_t i = 0; i < row.tiles.size(); ++i) {
    const auto columns = list_columns(row.tiles[i], rule.block_size);
    end = std::max(end, columns.context_end());
    row.cells = std::max(row.cells, columns.own * rule.repeat * columns.width);
    row.held_rows = std::max({row.held_rows, columns.width, end - row.first_needed[i]});
  }
  return row;
}

TileRows::TileRows(Tensor context, Tensor own, int64_t capacity)
    : context_(std::move(context)),
      own_(std::move(own)),
      rows_(torch::empty({capacity, own_.size(1)}, own_.options())) {}

Tensor TileRows::take(const TileColumns& tile) {
  const bool goes_on = begin_ <= tile.context_begin && tile.context_begin <= end_ &&
                       tile.context_begin - begin_ + tile.width <= rows_.size(0);
  if (!goes_on) begin_ = end_ = tile.context_begin;
  const auto taken = rows_.narrow(0, tile.context_begin - begin_, tile.width);
  const int64_t first = std::min(end_, tile.context_end());
  const auto put = [&](int64_t place, const Tensor& from, int64_t begin, int64_t count) {
    taken.narrow(0, place, count).copy_(from.narrow(0, begin, count));
  };
  put(first - tile.context_begin, context_, first, tile.context_end() - first);
  put(tile.context, own_, tile.own_begin, tile.own);
  const int64_t used = tile.context + tile.own;
  taken.narrow(0, used, tile.width - used).zero_();
  end_ = tile.context_end();
  return taken;
}

ContextSums::ContextSums(Tensor gradient, int64_t capacity)
    : gradient_(std::move(gradient)),
      sums_(torch::empty(
          {capacity, gradient_.size(1)},
          gradient_.options().dtype(
              gradient_.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat))) {}

Tensor ContextSums::rows_of(int64_t begin, int64_t end) const {
  return sums_.narrow(0, begin - base_, end - begin);
}

void ContextSums::add(const Tensor& values, int64_t first) {
  const int64_t end = first + values.size(0);
  if (end - base_ > sums_.size(0)) {
    const auto held = rows_of(begin_, end_);
    std::memmove(sums_.mutable_data_ptr(), held.const_data_ptr(), held.nbytes());
    base_ = begin_;
  }
  if (end > end_) {
    rows_of(end_, end).zero_();
    end_ = end;
  }
  add_to_sums(
      {.storage = storage_of(values),
       .values = values.const_data_ptr(),
       .sums = rows_of(first, end).mutable_data_ptr(),
       .count = values.numel()});
}

void ContextSums::finish(int64_t end) {
  const int64_t summed = std::min(end, end_);
  if (summed > begin_) {
    gradient_.narrow(0, begin_, summed - begin_).copy_(rows_of(begin_, summed));
    begin_ = summed;
  }
  if (end <= end_) return;
  gradient_.narrow(0, end_, end - end_).zero_();  // nobody sees these
  base_ = begin_ = end_ = end;
}

}  // namespace draftsmith::ops
