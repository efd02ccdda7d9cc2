// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/handoff.h"

#include <array>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

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

}  // namespace

Handoff::Handoff(torch::Device from, torch::Device to)
    : from_(from), to_(to), from_stream_(make_stream(from)), to_stream_(make_stream(to)) {}

torch::Tensor Handoff::move(const torch::Tensor& tensor) const {
  if (!tensor.defined() || tensor.device() == to_) return tensor;
  const auto source = tensor.is_cpu() ? tensor.pin_memory() : tensor;
  // The allocator must not give the source away while the copy reads it.
  if (from_stream_ && !tensor.is_cpu()) source.record_stream(*from_stream_);
  return source.to(to_, /*non_blocking=*/true);
}

void Handoff::send(TrainBatch& batch) {
  if (!to_stream_) return;
  if (from_stream_) {
    c10::Event is_made(from_.type());
    is_made.record(VirtualGuardImpl(from_.type()).getStream(from_));
    is_made.block(*from_stream_);
  }
  const c10::OptionalStreamGuard reading(from_stream_);
  const c10::StreamGuard writing(*to_stream_);
  for (torch::Tensor* tensor : tensors_of(batch))
    *tensor = move(*tensor);
  batch.ready = std::make_shared<c10::Event>(to_.type());
  batch.ready->record(*to_stream_);
}

void receive(TrainBatch& batch) {
  if (!batch.ready) return;
  const auto device = batch.features.device();
  const auto stream = VirtualGuardImpl(device.type()).getStream(device);
  batch.ready->block(stream);
  // They were allocated for the stream of the copy, and live for this one.
  for (torch::Tensor* tensor : tensors_of(batch))
    if (tensor->defined() && tensor->device() == device) tensor->record_stream(stream);
  batch.ready = nullptr;
}

}  // namespace draftsmith::pipeline
