// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/train_batch.h"

namespace draftsmith::pipeline {

TrainBatch make_train_batch(
    const model::Target& target,
    data::SourceBatch batch,
    const std::vector<int64_t>& target_layer_ids,
    torch::ScalarType drafter_dtype) {
  TrainBatch result;
  result.tokens = std::move(batch.tokens);
  result.blocks = std::move(batch.blocks);
  result.at = batch.at;
  result.next = batch.next;
  const auto states = target.forward(result.tokens.ids, target_layer_ids);
  result.features = states.features.to(drafter_dtype);
  result.teacher_states = states.last.to(drafter_dtype);
  result.embedded = target.embed(result.blocks.block_ids.flatten(1)).to(drafter_dtype);
  return result;
}

}  // namespace draftsmith::pipeline
