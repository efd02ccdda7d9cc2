// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/batch_shapes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "draftsmith/base/error.h"
#include "draftsmith/data/length_buckets.h"

namespace draftsmith::pipeline {
namespace {

constexpr int64_t kBlockShapes = 4;

int64_t find_shape(const std::vector<int64_t>& shapes, int64_t size) {
  const auto found = std::lower_bound(shapes.begin(), shapes.end(), size);
  DS_CHECK(found != shapes.end());
  return *found;
}

/// Makes dimension 1 `size` long.
void pad(torch::Tensor& tensor, int64_t size, double value = 0) {
  const int64_t missing = size - tensor.size(1);
  if (missing == 0) return;
  auto shape = tensor.sizes().vec();
  shape[1] = missing;
  tensor = torch::cat({tensor, torch::full(shape, value, tensor.options())}, 1);
}

}  // namespace

BatchShapes choose_batch_shapes(
    const std::vector<int64_t>& batch_tokens,
    int64_t most_tokens,
    int64_t num_anchors,
    int64_t num_shapes) {
  BatchShapes shapes;
  for (const int64_t end : data::choose_bucket_ends(batch_tokens, num_shapes))
    shapes.tokens.push_back(end - 1);
  shapes.tokens.back() = std::max(shapes.tokens.back(), most_tokens);
  for (int64_t quarter = 1; quarter <= kBlockShapes; ++quarter) {
    const int64_t blocks = (quarter * num_anchors + kBlockShapes - 1) / kBlockShapes;
    if (shapes.blocks.empty() || shapes.blocks.back() < blocks) shapes.blocks.push_back(blocks);
  }
  return shapes;
}

BatchShapes choose_batch_shapes(const data::BatchSource& source) {
  const auto& settings = source.settings();
  if (!settings.static_shapes) return {};
  auto shapes = choose_batch_shapes(
      source.batch_tokens(), source.most_batch_tokens(), settings.num_anchors,
      settings.num_buckets);
  shapes.max_length = settings.max_length;
  return shapes;
}

double padding_waste(const BatchShapes& shapes, const std::vector<int64_t>& batch_tokens) {
  double used = 0, padded = 0;
  for (const int64_t tokens : batch_tokens) {
    used += static_cast<double>(tokens);
    padded += static_cast<double>(find_shape(shapes.tokens, tokens));
  }
  return padded > 0 ? 1 - used / padded : 0;
}

std::string describe_shapes(const BatchShapes& shapes, const data::BatchSource& source) {
  return fmt::format(
      "static shapes: {} tokens x {} blocks; {:.2f} % of the tokens only fill a shape",
      fmt::join(shapes.tokens, " "), fmt::join(shapes.blocks, " "),
      100 * padding_waste(shapes, source.batch_tokens()));
}

void pad_to_shape(TrainBatch& batch, const BatchShapes& shapes) {
  if (shapes.empty()) return;
  const int64_t T = find_shape(shapes.tokens, batch.features.size(1));
  pad(batch.features, T);
  pad(batch.teacher_states, T);
  auto& blocks = batch.blocks;
  pad(blocks.context_positions, T);
  const int64_t K = blocks.layout.block_size;
  const int64_t kept = blocks.positions.size(1);
  const int64_t N = find_shape(shapes.blocks, kept);
  pad(batch.embedded, N * K);
  for (torch::Tensor* tensor :
       {&blocks.layout.anchors, &blocks.layout.keep, &blocks.layout.context_begin,
        &blocks.block_ids, &blocks.positions, &blocks.labels, &blocks.weights})
    pad(*tensor, N);
  pad(blocks.teacher_rows, N, -1);
  // As in every block that is not kept.
  blocks.positions.slice(1, kept).copy_(torch::arange(K, blocks.positions.options()));
}

}  // namespace draftsmith::pipeline
