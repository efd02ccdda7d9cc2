// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/batch_feed.h"

#include <utility>

#include "draftsmith/base/error.h"
#include "draftsmith/base/stopwatch.h"
#include "draftsmith/memory/stage.h"
#include "draftsmith/pipeline/handoff.h"

namespace draftsmith::pipeline {

TrainBatch
make_train_batch(const model::Target& target, data::SourceBatch batch, const BatchRecipe& recipe) {
  auto made =
      make_train_batch(target, std::move(batch), recipe.target_layer_ids, recipe.drafter_dtype);
  pad_to_shape(made, recipe.shapes);
  return made;
}

InlineFeed::InlineFeed(
    const model::Target& target,
    data::BatchSource source,
    BatchRecipe recipe,
    const FeedStart& start)
    : target_(target),
      source_(std::move(source)),
      recipe_(std::move(recipe)),
      number_(start.first_number()),
      ranks_(start.ranks) {
  DS_CHECK(start.rank >= 0 && start.rank < start.ranks);
  cursor_ = source_.advance(start.cursor, number_ - start.number);
}

std::optional<TrainBatch> InlineFeed::next() {
  Stopwatch watch;
  auto read = [&] {
    const memory::Stage stage("reading a batch");
    return source_.read(cursor_, recipe_.rule, ranks_);
  }();
  const double data_seconds = watch.restart();
  auto batch = make_train_batch(target_, std::move(read), recipe_);
  move_batch(batch, recipe_.drafter_device);
  batch.number = number_;
  batch.times = {data_seconds, watch.seconds()};
  cursor_ = source_.advance(cursor_, ranks_);
  number_ += ranks_;
  return batch;
}

}  // namespace draftsmith::pipeline
