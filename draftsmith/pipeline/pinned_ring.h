// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <torch/types.h>

#include "draftsmith/pipeline/staging.h"

namespace draftsmith::pipeline {

/// Copies from one device to another through a few buffers in pinned memory of the host, whose
/// thread waits for nothing.
class PinnedRing {
 public:
  /// Copies leave on the stream `from` and arrive on `to`, which both belong to the caller.
  PinnedRing(const c10::Stream& from, const c10::Stream& to);

  /// The tensor on the device of `to`, there for what follows on that stream. It was made for what
  /// precedes on `from`.
  torch::Tensor copy(const torch::Tensor& tensor);

  // Called by StagingOrder.
  void await_empty(int64_t i);
  void fill(int64_t i, int64_t begin, int64_t count);
  void await_full(int64_t i);
  void empty(int64_t i, int64_t begin, int64_t count);

 private:
  torch::Tensor buffer(int64_t i, int64_t count) const;

  c10::Stream from_, to_;
  StagingOrder order_;
  std::vector<torch::Tensor> buffers_;
  std::vector<c10::Event> full_, empty_;  // of the last use of each
  torch::Tensor source_, target_;         // bytes of what is under way
};

}  // namespace draftsmith::pipeline
