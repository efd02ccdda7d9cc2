// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "draftsmith/model/drafter_init.h"
#include "draftsmith/pipeline/train_batch.h"
#include "draftsmith/train/step.h"

#include "tests/support/tiny_models.h"

namespace draftsmith::testing {

/// A random drafter for targets/qwen3-tiny.
inline model::Drafter make_tiny_drafter(
    const model::Target& target,
    const std::string& dtype = "float32",
    uint64_t seed = 0) {
  auto settings = tiny_drafter_settings();
  settings.dtype = dtype;
  return model::make_drafter(settings, {}, target, {}, seed);
}

/// The batch of these sequences with these anchors; without anchors, all eligible positions.
inline pipeline::TrainBatch make_batch(
    const model::Target& target,
    const model::Drafter& drafter,
    const std::vector<data::TokenSequence>& sequences,
    double decay_gamma,
    data::Anchors anchors = {}) {
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < sequences.size(); ++i)
    numbers.push_back(static_cast<int64_t>(i));
  data::SourceBatch source;
  source.tokens = data::pad_sequences(sequences, numbers);
  const data::BlockRows rows{source.tokens.ids, source.tokens.mask, {}};
  if (!anchors.positions.defined())
    anchors = data::choose_anchors(rows, numbers, {100000, 0, 0, 0});
  source.blocks = data::make_draft_blocks(rows, anchors, drafter.block_rule(decay_gamma));
  return pipeline::make_train_batch(
      target, std::move(source), drafter.config().target_layer_ids, drafter.dtype());
}

/// Sequences [first, first + count) of a batch, padding kept.
inline pipeline::TrainBatch
narrow_rows(const pipeline::TrainBatch& batch, int64_t first, int64_t count) {
  pipeline::TrainBatch part = batch;
  auto& blocks = part.blocks;
  const int64_t S = batch.features.size(1) / blocks.num_rows;
  const int64_t begin = first * S;
  const auto& anchors = batch.blocks.layout.anchors;
  const auto chosen =
      (anchors >= begin).logical_and(anchors < begin + count * S)[0].nonzero().squeeze(1);
  for (torch::Tensor* tensor :
       {&blocks.layout.anchors, &blocks.layout.keep, &blocks.layout.context_begin,
        &blocks.block_ids, &blocks.positions, &blocks.labels, &blocks.weights,
        &blocks.teacher_rows})
    *tensor = tensor->index_select(1, chosen);
  for (torch::Tensor* tensor : {&part.features, &part.teacher_states, &blocks.context_positions})
    *tensor = tensor->narrow(1, begin, count * S);
  const int64_t K = blocks.layout.block_size;
  part.embedded = batch.embedded.unflatten(1, {-1, K}).index_select(1, chosen).flatten(1, 2);
  blocks.num_rows = count;
  blocks.layout.anchors = blocks.layout.anchors - begin;
  blocks.layout.context_begin = blocks.layout.context_begin - begin;
  blocks.teacher_rows =
      torch::where(blocks.teacher_rows >= 0, blocks.teacher_rows - begin, blocks.teacher_rows);
  const auto lengths = batch.tokens.lengths.begin() + first;
  part.tokens.lengths = {lengths, lengths + count};
  return part;
}

/// Adds the sums and gradients of a further micro-step.
inline void add_micro_step(train::MicroStep& total, const train::MicroStep& part) {
  total.sums += part.sums;
  if (total.gradients.empty()) {
    total.gradients = part.gradients;
    return;
  }
  for (size_t i = 0; i < part.gradients.size(); ++i)
    total.gradients[i] = total.gradients[i] + part.gradients[i];
}

inline train::LossSettings make_loss(double gamma, double kl_weight, double cap_weight) {
  train::LossSettings settings;
  settings.decay_gamma = gamma;
  settings.kl_weight = kl_weight;
  settings.cap_weight = cap_weight;
  return settings;
}

}  // namespace draftsmith::testing
