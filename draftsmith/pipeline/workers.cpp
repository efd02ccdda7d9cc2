// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/workers.h"

#include <algorithm>
#include <utility>

#include <c10/core/DeviceGuard.h>

#include "draftsmith/pipeline/handoff.h"

namespace draftsmith::pipeline {
namespace {

constexpr int64_t kWarmUpTokens = 64;

/// Starts the thread's compute threads, and libraries that set themselves up when first used.
void warm_up(const model::Target& target, const std::vector<int64_t>& layer_ids) {
  const int64_t limit = target.config().max_position_embeddings;
  const int64_t tokens = limit > 0 ? std::min(kWarmUpTokens, limit) : kWarmUpTokens;
  const auto ids = torch::zeros({1, tokens}, torch::kLong);
  if (target.stored() == nullptr) target.forward(ids, layer_ids);
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
    warm_up(target, recipe.target_layer_ids);
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
