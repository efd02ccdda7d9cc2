// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <torch/types.h>

namespace draftsmith::ops {

/// A second stream of a GPU for work that hides behind the products of the current one. On the CPU
/// there is none, and everything happens in the order of the calls.
class RowStream {
 public:
  explicit RowStream(torch::Device device);
  /// Ends the use of memory that the streams share: the current stream waits for the second.
  ~RowStream();
  RowStream(const RowStream&) = delete;
  RowStream& operator=(const RowStream&) = delete;

  bool overlaps() const { return stream_.has_value(); }

  /// Puts `work` on the second stream, after what the current one has been given so far. Tensors of
  /// the current stream that it uses must live until the current stream has waited for it.
  void run(const std::function<void()>& work);

  /// The current stream goes on after the i-th `run`.
  void wait_for(size_t i);

 private:
  torch::Device device_;
  std::optional<c10::Stream> stream_;
  std::vector<c10::Event> done_;
};

}  // namespace draftsmith::ops
