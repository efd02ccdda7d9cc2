// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include <c10/core/Stream.h>

#include "draftsmith/pipeline/pinned_ring.h"
#include "draftsmith/pipeline/train_batch.h"

namespace draftsmith::pipeline {

/// Moves what a target worker made to a drafter's device. The copy runs on streams of its
/// own beside both sides' work, and an event tells the drafter's stream, not its thread, when it is
/// there. Host tensors are copied from pinned memory; where two devices cannot reach each other,
/// the bytes go through a small ring of pinned buffers. Only what a drafter on
/// the host is given is waited for.
///
/// Streams and events are those of c10, for whatever device the build has. Between host and host
/// nothing happens.
class Handoff {
 public:
  Handoff(torch::Device from, torch::Device to);

  /// In the worker's thread, after what made the batch was started.
  void send(TrainBatch& batch);

 private:
  torch::Tensor move(const torch::Tensor& tensor);

  torch::Device from_, to_;
  std::optional<c10::Stream> from_stream_, to_stream_;  // absent for the host
  std::unique_ptr<PinnedRing> ring_;                    // where there is no other way
};

/// A drafter's stream waiting for a batch.
struct StreamWait {
  std::shared_ptr<c10::Event> begin, end;  // none if nothing had to be waited for

  /// How long it took; 0 as long as the stream has not come that far.
  double seconds() const;
};

/// In the drafter's thread, before its first use of the batch.
StreamWait receive(TrainBatch& batch);

/// The same in one: the batch on a device, for the current stream there.
void move_batch(TrainBatch& batch, torch::Device device);

}  // namespace draftsmith::pipeline
