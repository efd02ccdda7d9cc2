// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "tests/ops/cuda/kernel_place.h"

namespace draftsmith::testing {

/// The host runner (tests/support/host_runner.h), with threads in an order of the seed.
std::unique_ptr<KernelPlace> make_host_place(uint64_t seed);

}  // namespace draftsmith::testing
