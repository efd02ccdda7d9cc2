// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <stdexcept>
#include <string>
#include <vector>

namespace draftsmith::testing {

/// What a kernel did that a GPU would not forgive, or would only sometimes.
class KernelFault : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Who touches shared memory, and when: barriers that the thread has passed.
struct Access {
  int thread = -1;
  int block_barriers = 0;
  int warp_barriers = 0;  // those of the block included
  std::source_location where = {};
};

/// What of accesses that need no order among each other tells whether a later one is ordered after
/// all of them. Whoever is later has passed as many barriers or more, so of a warp the last two
/// threads do: one of them is not the later access's own. Of other warps one thread does, because
/// one that a barrier of the block does not order after them is found by either warp's.
class LastAccesses {
 public:
  void note(const Access& now);
  /// One that no barrier orders before `now`, or null.
  const Access* find_unordered(const Access& now) const;

 private:
  Access last_;
  Access last_of_another_lane_;  // in the warp of `last_`
  Access last_of_another_warp_;
};

/// The shared memory of a block. Every byte remembers who touched it last, so that an access that
/// no barrier orders after it is found whatever order the threads ran in.
/// Errors of all: KernelFault.
class HostSharedMemory {
 public:
  explicit HostSharedMemory(int64_t bytes);

  void read(int64_t offset, int64_t bytes, void* to, const Access& now);
  void write(int64_t offset, int64_t bytes, const void* from, const Access& now);

  /// The bytes of an atomic operation: ordered among each other, but not with other accesses.
  std::byte* access_atomically(int64_t offset, int64_t bytes, const Access& now);

  /// An asynchronous copy will write here: nobody may touch the bytes until `land`.
  void announce(int64_t offset, int64_t bytes, const Access& now);
  void land(int64_t offset, int64_t bytes, const void* from, const Access& now);

 private:
  struct ByteState {
    Access write;
    LastAccesses reads, atomics;  // since the last write
    bool is_announced = false;
  };

  void check_range(int64_t offset, int64_t bytes, const Access& now) const;
  void check_after_write(int64_t offset, const char* verb, const Access& now) const;
  void check_after(
      int64_t offset,
      const char* first,
      const LastAccesses& before,
      const char* then,
      const Access& now) const;
  void mark_write(int64_t offset, const char* verb, const Access& now);

  std::vector<std::byte> bytes_;
  std::vector<ByteState> states_;
};

/// "file.cuh:12"
std::string place_of(const std::source_location& where);

}  // namespace draftsmith::testing
