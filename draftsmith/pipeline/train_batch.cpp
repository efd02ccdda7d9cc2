// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/train_batch.h"

#include "draftsmith/memory/stage.h"
#include "draftsmith/pipeline/target_states.h"

namespace draftsmith::pipeline {

TrainBatch make_train_batch(
    const model::Target& target,
    data::SourceBatch batch,
    const std::vector<int64_t>& target_layer_ids,
    torch::ScalarType drafter_dtype) {
  const memory::Stage stage("the target's forward");
  const auto states = find_target_states(target, batch.tokens, target_layer_ids);
  return join_train_batch(target, std::move(batch), states, drafter_dtype);
}

TrainBatch join_train_batch(
    const model::Target& target,
    data::SourceBatch batch,
    const model::TargetStates& states,
    torch::ScalarType drafter_dtype) {
  TrainBatch result;
  result.tokens = std::move(batch.tokens);
  result.blocks = data::join_rows(batch.blocks);
  result.source = batch.source;
  result.at = batch.at;
  result.next = batch.next;
  const auto join = [&](const torch::Tensor& rows) {
    return rows.to(drafter_dtype).flatten(0, 1).unsqueeze(0);
  };
  result.features = join(states.features);
  result.teacher_states = join(states.last);
  result.embedded = target.embed(result.blocks.block_ids.flatten(1)).to(drafter_dtype);
  return result;
}

}  // namespace draftsmith::pipeline
