// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/blank_batch.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "draftsmith/base/error.h"
#include "draftsmith/pipeline/handoff.h"

namespace draftsmith::pipeline {
namespace {

/// `count` anchors spread evenly over rows of `tokens`, none at the last token if there are two.
data::Anchors spread_anchors(int64_t rows, int64_t tokens, int64_t count) {
  const int64_t per_row = (count + rows - 1) / rows;
  const auto positions =
      (torch::arange(per_row) * std::max<int64_t>(tokens - 1, 1)).div(per_row, "floor");
  return {
      positions.expand({rows, per_row}).contiguous(),
      (torch::arange(rows * per_row) < count).view({rows, per_row})};
}

}  // namespace

torch::Tensor make_blank_rows(int64_t tokens, int64_t max_length) {
  DS_CHECK(tokens > 0);
  const int64_t rows = max_length > 0 ? (tokens + max_length - 1) / max_length : 1;
  return torch::zeros({rows, tokens / rows}, torch::kLong);
}

TrainBatch make_blank_batch(
    const model::Target& ends,
    const BatchRecipe& recipe,
    int64_t tokens,
    int64_t blocks) {
  const auto ids = make_blank_rows(tokens, recipe.shapes.max_length);
  const int64_t B = ids.size(0), S = ids.size(1), D = ends.config().hidden_size;
  const auto length = static_cast<size_t>(S);
  const std::vector<data::TokenSequence> sequences(
      static_cast<size_t>(B), {std::vector<int64_t>(length, 0), std::vector<uint8_t>(length, 1)});
  data::SourceBatch batch;
  batch.tokens = data::pad_sequences(sequences, {});
  batch.blocks = data::make_draft_blocks(
      {ids, batch.tokens.mask, {}}, spread_anchors(B, S, blocks), recipe.rule);
  const auto num_layers = static_cast<int64_t>(recipe.target_layer_ids.size());
  const auto options = torch::dtype(recipe.drafter_dtype).device(recipe.drafter_device);
  const model::TargetStates states{
      torch::zeros({B, S, num_layers * D}, options), torch::zeros({B, S, D}, options)};
  auto made = join_train_batch(ends, std::move(batch), states, recipe.drafter_dtype);
  pad_to_shape(made, {{tokens}, {blocks}});
  move_batch(made, recipe.drafter_device);
  return made;
}

}  // namespace draftsmith::pipeline
