// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/base/error.h"
#include "draftsmith/pipeline/device_group.h"

namespace draftsmith::pipeline {

c10::intrusive_ptr<c10d::Backend> make_device_group(
    c10::intrusive_ptr<c10d::Store> /*store*/,
    int64_t /*rank*/,
    int64_t /*size*/,
    std::chrono::milliseconds /*timeout*/) {
  throw DeviceError(
      {.what = "a group of CUDA devices",
       .expected = "a build with CUDA",
       .got = "one for the CPU alone",
       .hint = "pipeline.drafter_devices=cpu"});
}

}  // namespace draftsmith::pipeline
