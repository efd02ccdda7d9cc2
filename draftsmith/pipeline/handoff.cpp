// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/handoff.h"

#include <algorithm>
#include <array>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "draftsmith/ops/cuda/devices.h"

namespace draftsmith::pipeline {
namespace {

using c10::impl::VirtualGuardImpl;

/// What the target made. Blocks depend on tokens only and stay on the host, where attention is
/// planned.
std::array<torch::Tensor*, 3> tensors_of(TrainBatch& batch) {
  return {&batch.embedded, &batch.features, &batch.teacher_states};
}

std::optional<c10::Stream> make_stream(torch::Device device) {
  if (device.is_cpu()) return std::nullopt;
  return VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

c10::Stream current_stream(torch::Device device) {
  return VirtualGuardImpl(device.type()).getStream(device);
}

/// What follows on `after` waits for what is on `before` now.
void order(const c10::Stream& before, const c10::Stream& after) {
  c10::Event event(before.device_type());
  event.record(before);
  event.block(after);
}

}  // namespace

Handoff::Handoff(torch::Device from, torch::Device to)
    : from_(from), to_(to), from_stream_(make_stream(from)), to_stream_(make_stream(to)) {
  if (from_stream_ && to_stream_ && !ops::cuda::has_peer_access(from, to))
    ring_ = std::make_unique<PinnedRing>(*from_stream_, *to_stream_);
}

torch::Tensor Handoff::move(const torch::Tensor& tensor) {
  if (!tensor.defined() || tensor.device() == to_) return tensor;
  if (tensor.is_cpu()) return tensor.pin_memory().to(to_, /*non_blocking=*/true);
  if (!from_stream_ || tensor.device() != from_)  // on the device of another drafter
    return tensor.to(to_, /*non_blocking=*/true);
  // The allocator must not give the source away while the copy reads it.
  tensor.record_stream(*from_stream_);
  return ring_ ? ring_->copy(tensor) : tensor.to(to_, /*non_blocking=*/true);
}

void Handoff::send(TrainBatch& batch) {
  if (!to_stream_) return move_batch(batch, to_);
  if (from_stream_) order(current_stream(from_), *from_stream_);
  const auto tensors = tensors_of(batch);
  // The worker's stream on the drafter's device may be the drafter's own, busy with a step: only
  // what was made there has to be waited for.
  if (std::any_of(tensors.begin(), tensors.end(), [&](const torch::Tensor* tensor) {
        return tensor->defined() && tensor->device() == to_;
      }))
    order(current_stream(to_), *to_stream_);
  const c10::OptionalStreamGuard reading(from_stream_);
  const c10::StreamGuard writing(*to_stream_);
  for (torch::Tensor* tensor : tensors)
    *tensor = move(*tensor);
  batch.ready = std::make_shared<c10::Event>(to_.type());
  batch.ready->record(*to_stream_);
}

double StreamWait::seconds() const {
  if (!begin || !begin->query() || !end->query()) return 0;
  return begin->elapsedTime(*end) / 1000;
}

StreamWait receive(TrainBatch& batch) {
  if (!batch.ready) return {};
  const auto device = batch.features.device();
  const auto stream = current_stream(device);
  const auto note_time = [&] {
    auto event = std::make_shared<c10::Event>(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    event->record(stream);
    return event;
  };
  StreamWait wait;
  wait.begin = note_time();
  batch.ready->block(stream);
  wait.end = note_time();
  // They were allocated for another stream, and live for this one.
  for (torch::Tensor* tensor : tensors_of(batch))
    if (tensor->defined() && tensor->device() == device) tensor->record_stream(stream);
  batch.ready = nullptr;
  return wait;
}

void move_batch(TrainBatch& batch, torch::Device device) {
  for (torch::Tensor* tensor : tensors_of(batch))
    if (tensor->defined()) *tensor = tensor->to(device);
}

}  // namespace draftsmith::pipeline
