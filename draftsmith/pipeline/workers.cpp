// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/workers.h"

#include <algorithm>
#include <utility>

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
  return {
      .run =
          [&target, recipe](data::SourceBatch batch) {
            return make_train_batch(
                target, std::move(batch), recipe.target_layer_ids, recipe.drafter_dtype);
          },
      .warm_up = [&target, recipe] { warm_up(target, recipe.target_layer_ids); }};
}

}  // namespace draftsmith::pipeline
