// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "draftsmith/data/batch_source.h"
#include "draftsmith/model/target.h"
#include "draftsmith/pipeline/ranks.h"
#include "draftsmith/pipeline/train_batch.h"

namespace draftsmith::pipeline {

/// A target that runs in another process, seen from a drafter's. It is asked by a message with the
/// tokens of a batch; the states come back by sends of the group. Everything else of a batch is
/// made here, where only the target's embedding and head are loaded.
/// Nothing is sent before it was asked for, so queues here hold the other side back too.
class RemoteTarget {
 public:
  /// `server` is the rank of `links` that runs `serve_target`. Answers come under `reply_tag`,
  /// which no other thread of this rank uses (from 1 on).
  RemoteTarget(Ranks links, int64_t server, int64_t reply_tag)
      : links_(std::move(links)), server_(server), reply_tag_(reply_tag) {}

  /// As pipeline::make_train_batch, bit for bit. `ends` embeds.
  TrainBatch make_train_batch(
      const model::Target& ends,
      data::SourceBatch batch,
      const std::vector<int64_t>& target_layer_ids,
      torch::ScalarType drafter_dtype) const;

  /// Tells the server that this rank will not ask again: because it is done, or with `has_failed`
  /// because it ends with an error, which it has announced. Once for each rank that asks.
  void say_goodbye(bool has_failed) const;

 private:
  Ranks links_;
  int64_t server_;
  int64_t reply_tag_;
};

/// Runs the target for other ranks, in the order in which they ask, until each of `num_clients` has
/// said goodbye.
/// Errors: of the target; DeviceError if one of the clients ends with an error.
void serve_target(const model::Target& target, const Ranks& links, int64_t num_clients);

}  // namespace draftsmith::pipeline
