// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/train_batch.h"

#include <algorithm>

namespace draftsmith::pipeline {
namespace {

/// States of packed rows: every document runs in a row of its own, so that none sees another.
model::TargetStates run_documents(
    const model::Target& target,
    const data::TokenBatch& tokens,
    const std::vector<int64_t>& layer_ids) {
  auto parts = tokens.parts;
  std::sort(parts.begin(), parts.end(), [](const auto& left, const auto& right) {
    return left.length > right.length;
  });
  model::TargetStates states;
  for (size_t begin = 0, end = 0; begin < parts.size(); begin = end) {
    // As many as need no more memory than the packed rows would.
    const int64_t longest = parts[begin].length;
    end = begin + static_cast<size_t>(std::max<int64_t>(1, tokens.ids.numel() / longest));
    end = std::min(end, parts.size());
    auto ids = torch::zeros({static_cast<int64_t>(end - begin), longest}, torch::kLong);
    for (size_t i = begin; i < end; ++i) {
      const auto& part = parts[i];
      ids[static_cast<int64_t>(i - begin)]
          .narrow(0, 0, part.length)
          .copy_(tokens.ids[part.row].narrow(0, part.row_begin, part.length));
    }
    const auto own = target.forward(ids, layer_ids);
    const auto scatter = [&](torch::Tensor& all, const torch::Tensor& some) {
      if (!all.defined())
        all = torch::zeros({tokens.ids.size(0), tokens.ids.size(1), some.size(2)}, some.options());
      for (size_t i = begin; i < end; ++i) {
        const auto& part = parts[i];
        all[part.row]
            .narrow(0, part.row_begin, part.length)
            .copy_(some[static_cast<int64_t>(i - begin)].narrow(0, 0, part.length));
      }
    };
    scatter(states.features, own.features);
    scatter(states.last, own.last);
  }
  return states;
}

}  // namespace

TrainBatch make_train_batch(
    const model::Target& target,
    data::SourceBatch batch,
    const std::vector<int64_t>& target_layer_ids,
    torch::ScalarType drafter_dtype) {
  TrainBatch result;
  result.tokens = std::move(batch.tokens);
  result.blocks = std::move(batch.blocks);
  result.source = batch.source;
  result.at = batch.at;
  result.next = batch.next;
  const auto states = result.tokens.document_ids.defined()
                          ? run_documents(target, result.tokens, target_layer_ids)
                          : target.forward(result.tokens.ids, target_layer_ids);
  result.features = states.features.to(drafter_dtype);
  result.teacher_states = states.last.to(drafter_dtype);
  result.embedded = target.embed(result.blocks.block_ids.flatten(1)).to(drafter_dtype);
  return result;
}

}  // namespace draftsmith::pipeline
