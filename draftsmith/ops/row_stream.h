// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include <torch/types.h>

namespace draftsmith::ops {

/// A second stream of a GPU for work that hides behind the products of the current one. On the CPU
/// there is none, and everything happens in the order of the calls.
class RowStream {
 public:
  /// Ends the use of memory that the streams share: the current stream waits for the second.
  virtual ~RowStream() = default;

  virtual bool overlaps() const = 0;

  /// Puts `work` on the second stream, after what the current one has been given so far. Tensors of
  /// the current stream that it uses must live until the current stream has waited for it.
  virtual void run(const std::function<void()>& work) = 0;

  /// The current stream goes on after the i-th `run`.
  virtual void wait_for(size_t i) = 0;
};

using MakeRowStream = std::function<std::unique_ptr<RowStream>(torch::Device)>;

std::unique_ptr<RowStream> make_row_stream(torch::Device device);

}  // namespace draftsmith::ops
