// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/pinned_ring.h"

#include <c10/core/StreamGuard.h>

namespace draftsmith::pipeline {
namespace {

constexpr int64_t kPieceBytes = int64_t{16} << 20;  // large enough for a link's full rate
constexpr int64_t kBuffers = 4;

torch::Tensor bytes_of(const torch::Tensor& tensor) { return tensor.view(-1).view(torch::kByte); }

}  // namespace

PinnedRing::PinnedRing(const c10::Stream& from, const c10::Stream& to)
    : from_(from), to_(to), order_(kPieceBytes, kBuffers) {
  const auto options = torch::TensorOptions(torch::kByte).pinned_memory(true);
  for (int64_t i = 0; i < kBuffers; ++i) {
    buffers_.push_back(torch::empty({kPieceBytes}, options));
    full_.emplace_back(from.device_type());
    empty_.emplace_back(to.device_type());
  }
}

torch::Tensor PinnedRing::copy(const torch::Tensor& tensor) {
  torch::Tensor dense, result;
  {
    const c10::StreamGuard guard(from_);
    dense = tensor.contiguous();
  }
  {
    const c10::StreamGuard guard(to_);
    result = torch::empty(dense.sizes(), dense.options().device(to_.device()));
  }
  source_ = bytes_of(dense);
  target_ = bytes_of(result);
  order_.copy(*this, source_.numel());
  source_ = target_ = torch::Tensor();
  return result;
}

void PinnedRing::await_empty(int64_t i) { empty_[static_cast<size_t>(i)].block(from_); }

void PinnedRing::fill(int64_t i, int64_t begin, int64_t count) {
  const c10::StreamGuard guard(from_);
  buffer(i, count).copy_(source_.narrow(0, begin, count), /*non_blocking=*/true);
  full_[static_cast<size_t>(i)].record(from_);
}

void PinnedRing::await_full(int64_t i) { full_[static_cast<size_t>(i)].block(to_); }

void PinnedRing::empty(int64_t i, int64_t begin, int64_t count) {
  const c10::StreamGuard guard(to_);
  target_.narrow(0, begin, count).copy_(buffer(i, count), /*non_blocking=*/true);
  empty_[static_cast<size_t>(i)].record(to_);
}

torch::Tensor PinnedRing::buffer(int64_t i, int64_t count) const {
  return buffers_[static_cast<size_t>(i)].narrow(0, 0, count);
}

}  // namespace draftsmith::pipeline
