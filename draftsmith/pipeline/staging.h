// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace draftsmith::pipeline {

/// The order of a copy in pieces through a few buffers: one queue of work fills them, another one
/// empties them, and both go on at once. Neither the caller nor a queue waits for anything but the
/// buffer that it needs.
///
/// `Queues` is told, for buffer i and the bytes [begin, begin + count):
///   await_empty(i)             the filling queue goes on once buffer i was emptied last time
///   fill(i, begin, count)      the filling queue copies them to the buffer
///   await_full(i)              the emptying queue goes on once the last fill(i) is done
///   empty(i, begin, count)     the emptying queue copies them from the buffer
class StagingOrder {
 public:
  StagingOrder(int64_t piece_bytes, int64_t num_buffers)
      : piece_bytes_(piece_bytes), num_buffers_(num_buffers) {}

  int64_t piece_bytes() const { return piece_bytes_; }
  int64_t num_buffers() const { return num_buffers_; }

  template <class Queues>
  void copy(Queues& queues, int64_t bytes) {
    for (int64_t begin = 0; begin < bytes; begin += piece_bytes_) {
      const int64_t count = std::min(piece_bytes_, bytes - begin);
      queues.await_empty(next_);
      queues.fill(next_, begin, count);
      queues.await_full(next_);
      queues.empty(next_, begin, count);
      next_ = (next_ + 1) % num_buffers_;
    }
  }

 private:
  int64_t piece_bytes_, num_buffers_;
  int64_t next_ = 0;  // buffer, of whatever is copied next
};

}  // namespace draftsmith::pipeline
