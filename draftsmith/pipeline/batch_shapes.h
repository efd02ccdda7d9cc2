// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "draftsmith/data/batch_source.h"
#include "draftsmith/pipeline/train_batch.h"

namespace draftsmith::pipeline {

/// The few shapes that batches are padded to, so that nothing is compiled, allocated or captured
/// for each of them anew. Both lists ascend; empty = batches stay as they are.
struct BatchShapes {
  std::vector<int64_t> tokens;  // context tokens of the joined row
  std::vector<int64_t> blocks;
  int64_t max_length = 0;  // tokens of a sequence; 0 = any

  bool empty() const { return tokens.empty(); }
};

/// At most `num_shapes` numbers of tokens, the ones that leave the least padding over the batches
/// of an epoch, of which no batch of any epoch exceeds the last; and quarters of `num_anchors`.
BatchShapes choose_batch_shapes(
    const std::vector<int64_t>& batch_tokens,  // of the batches of an epoch
    int64_t most_tokens,
    int64_t num_anchors,
    int64_t num_shapes);

/// Those for `data.static_shapes`, or empty ones without it.
BatchShapes choose_batch_shapes(const data::BatchSource& source);

/// Share of the padded tokens that is padding, over batches.
double padding_waste(const BatchShapes& shapes, const std::vector<int64_t>& batch_tokens);

/// Shapes and waste, for people.
std::string describe_shapes(const BatchShapes& shapes, const data::BatchSource& source);

/// Pads the batch to the smallest shape that holds it: context that no block sees, and blocks that
/// are not kept. Loss and gradients stay the same, up to rounding.
void pad_to_shape(TrainBatch& batch, const BatchShapes& shapes);

}  // namespace draftsmith::pipeline
