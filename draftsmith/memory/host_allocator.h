// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace draftsmith::memory {

/// Bytes of host tensors.
struct HostBytes {
  int64_t live = 0;  // in tensors now
  int64_t peak = 0;  // largest `live` since the last reset
  int64_t idle = 0;  // kept for the next tensor of about the same size
  // What matrix products take beside tensors (ops::is_in_product):
  int64_t scratch = 0;
  int64_t scratch_peak = 0;  // largest `scratch` since the last reset
};

/// From now on host tensors come from an allocator that counts them and that keeps large blocks
/// for reuse, together never more than tensors took at their peak. The C library gives every large
/// block back to the system, and a training step then spends a quarter of its time on page faults.
/// Call it before the first tensor is made; tensors made earlier stay valid. Safe from any thread.
void install_host_allocator();

HostBytes host_bytes();

/// Refuses tensors beyond this many live bytes; 0 = no limit. Scratch of products is not refused.
/// Errors, in whoever asks for such a tensor: DeviceError with bytes asked, used and allowed.
void limit_host_bytes(int64_t limit);

/// Names what runs from now on, for the error of `limit_host_bytes` and for profilers of a GPU. `name`
/// is a literal.
void name_host_phase(const char* name);

/// Lets the peaks start again from what is there.
void reset_host_peak();

}  // namespace draftsmith::memory
