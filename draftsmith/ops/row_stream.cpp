// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/row_stream.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace draftsmith::ops {
namespace {

c10::Stream current_stream(torch::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

RowStream::RowStream(torch::Device device) : device_(device) {
  if (device.is_cpu()) return;
  stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

RowStream::~RowStream() {
  if (!done_.empty()) done_.back().block(current_stream(device_));
}

void RowStream::run(const std::function<void()>& work) {
  if (!overlaps()) return work();
  c10::Event ready(device_.type());
  ready.record(current_stream(device_));
  ready.block(*stream_);
  const c10::StreamGuard guard(*stream_);
  work();
  done_.emplace_back(device_.type());
  done_.back().record(*stream_);
}

void RowStream::wait_for(size_t i) {
  if (overlaps()) done_[i].block(current_stream(device_));
}

}  // namespace draftsmith::ops
