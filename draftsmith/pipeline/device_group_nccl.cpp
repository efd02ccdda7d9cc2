// SPDX-License-Identifier: Apache-2.0
#define USE_C10D_NCCL 1
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "draftsmith/pipeline/device_group.h"

namespace draftsmith::pipeline {

c10::intrusive_ptr<c10d::Backend> make_device_group(
    c10::intrusive_ptr<c10d::Store> store,
    int64_t rank,
    int64_t size,
    std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(
      std::move(store), static_cast<int>(rank), static_cast<int>(size), options);
}

}  // namespace draftsmith::pipeline
