// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/row_stream.h"

#include <vector>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace draftsmith::ops {
namespace {

class InOrder final : public RowStream {
 public:
  bool overlaps() const override { return false; }
  void run(const std::function<void()>& work) override { work(); }
  void wait_for(size_t /*i*/) override {}
};

class SecondStream final : public RowStream {
 public:
  explicit SecondStream(torch::Device device)
      : device_(device),
        stream_(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)) {}
  SecondStream(const SecondStream&) = delete;
  SecondStream& operator=(const SecondStream&) = delete;
  ~SecondStream() override {
    if (!done_.empty()) done_.back().block(current_stream());
  }

  bool overlaps() const override { return true; }

  void run(const std::function<void()>& work) override {
    c10::Event ready(device_.type());
    ready.record(current_stream());
    ready.block(stream_);
    const c10::StreamGuard guard(stream_);
    work();
    done_.emplace_back(device_.type());
    done_.back().record(stream_);
  }

  void wait_for(size_t i) override { done_[i].block(current_stream()); }

 private:
  c10::Stream current_stream() const {
    return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  }

  torch::Device device_;
  c10::Stream stream_;
  std::vector<c10::Event> done_;
};

}  // namespace

std::unique_ptr<RowStream> make_row_stream(torch::Device device) {
  if (device.is_cpu()) return std::make_unique<InOrder>();
  return std::make_unique<SecondStream>(device);
}

}  // namespace draftsmith::ops
