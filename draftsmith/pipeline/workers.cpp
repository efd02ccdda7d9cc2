// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/workers.h"

#include <algorithm>
#include <utility>

#include <c10/core/DeviceGuard.h>

#include "draftsmith/memory/stage.h"
#include "draftsmith/pipeline/blank_batch.h"
#include "draftsmith/pipeline/handoff.h"

namespace draftsmith::pipeline {
namespace {

/// Starts the thread's compute threads, and libraries that set themselves up when first used; with
/// static shapes the allocator too has what the largest batch takes.
void warm_up(const model::Target& target, const BatchRecipe& recipe) {
  const int64_t limit = target.config().max_position_embeddings;
  const auto ids =
      recipe.shapes.empty()
          ? make_blank_rows(limit > 0 ? std::min(kBlankTokens, limit) : kBlankTokens, 0)
          : make_blank_rows(recipe.shapes.tokens.back(), recipe.shapes.max_length);
  if (target.stored() == nullptr) target.forward(ids, recipe.target_layer_ids);
  target.embed(ids);
}

}  // namespace

LoadBatch make_loader(data::BatchSource source, const BatchRecipe& recipe, const FeedStart& start) {
  // A function that is copied must share what it moves.
  const auto shared = std::make_shared<const data::BatchSource>(std::move(source));
  const auto place = std::make_shared<FeedStart>(start);
  return [shared, place, rule = recipe.rule](int64_t number) {
    place->cursor = shared->advance(place->cursor, number - place->number);
    place->number = number;
    const memory::Stage stage("reading a batch");
    return shared->load(place->cursor, rule);
  };
}

TargetWorker make_target_worker(const model::Target& target, const BatchRecipe& recipe) {
  const torch::Device device = target.lm_head().device();
  TargetWorker worker;
  worker.run = [&target, recipe, device](data::SourceBatch batch) {
    const c10::DeviceGuard guard(device);
    return make_train_batch(target, std::move(batch), recipe);
  };
  worker.warm_up = [&target, recipe, device] {
    const c10::DeviceGuard guard(device);
    warm_up(target, recipe);
  };
  return worker;
}

void hand_over_to(
    TargetWorker& worker,
    torch::Device from,
    const std::vector<torch::Device>& drafter_devices) {
  // Functions are copied, ways are not.
  auto ways = std::make_shared<std::vector<Handoff>>();
  for (const auto& to : drafter_devices)
    ways->emplace_back(from, to);
  worker.hand_over = [ways, from](TrainBatch& batch, int64_t rank) {
    const c10::DeviceGuard guard(from);
    ways->at(static_cast<size_t>(rank)).send(batch);
  };
}

}  // namespace draftsmith::pipeline
