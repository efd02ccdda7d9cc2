// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <torch/types.h>

namespace draftsmith::ops {

/// Work that was recorded once and is done again without its host code. It reads the same tensors
/// every time, with whatever they hold then.
class Recording {
 public:
  virtual ~Recording() = default;

  /// Puts the work on the current stream. Its results are good until the next replay of any
  /// recording of the same recorder.
  virtual std::vector<torch::Tensor> replay() = 0;
};

using RecordedWork = std::function<std::vector<torch::Tensor>()>;

/// Records work whose shapes, pointers and host decisions do not change. While it is recorded it
/// must not wait for the device or read values from it.
class Recorder {
 public:
  virtual ~Recorder() = default;

  /// Runs work as it is, so that what is loaded or set up by its first run is there.
  virtual void rehearse(const std::function<void()>& work) = 0;

  /// Calls `work` once; its results hold nothing before the first replay. All recordings share the
  /// memory of what lives only within them. What one leaves for the next that was recorded is there
  /// if that is also the next to be replayed.
  virtual std::unique_ptr<Recording> record(const RecordedWork& work) = 0;
};

}  // namespace draftsmith::ops
