// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "draftsmith/base/error.h"

namespace draftsmith::memory {

/// There is no memory for a tensor.
struct OutOfMemory : DeviceError {
  using DeviceError::DeviceError;
};

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
/// Errors, in whoever asks for a tensor that the system has no memory for: OutOfMemory.
void install_host_allocator();

HostBytes host_bytes();

/// Refuses tensors beyond this many live bytes; 0 = no limit. Scratch of products is not refused.
/// Errors, in whoever asks for such a tensor: OutOfMemory with bytes asked, used and allowed.
void limit_host_bytes(int64_t limit);

/// Names what the calling thread runs until `end_host_phase`, within the phases that it is in
/// already: for the error of `limit_host_bytes`, for the peaks of phases and for profilers of a GPU.
/// Threads of libraries are in no phase; theirs is the one that any thread began or came back to
/// last. `name` is a literal.
void begin_host_phase(const char* name);
/// `has_failed`: an error ends it.
void end_host_phase(bool has_failed = false);

/// The innermost phase of those that the first error ended, or null.
const char* first_failed_host_phase();

/// The most live bytes, of whatever is alive then, at any tensor that a phase made, itself or a
/// phase within it, since the last reset.
std::map<std::string, int64_t> host_phase_peaks();

/// Lets the peaks start again from what is there, and forgets the peaks of phases.
void reset_host_peak();

}  // namespace draftsmith::memory
