// SPDX-License-Identifier: Apache-2.0
#include "tests/support/host_shared_memory.h"

#include <fmt/format.h>

#include <cstring>

namespace draftsmith::testing {
namespace {

constexpr int kWarp = 32;

std::string describe(const Access& access) {
  return fmt::format("thread {} ({})", access.thread, place_of(access.where));
}

bool is_ordered(const Access& before, const Access& now) {
  if (before.thread == -1 || before.thread == now.thread) return true;
  if (before.block_barriers < now.block_barriers) return true;
  return before.thread / kWarp == now.thread / kWarp && before.warp_barriers < now.warp_barriers;
}

[[noreturn]] void fail_order(
    int64_t offset,
    const char* first,
    const Access& before,
    const char* then,
    const Access& now) {
  throw KernelFault(fmt::format(
      "shared memory, byte {}: expected a barrier between the {} of {} and the {} of {}, got none",
      offset, first, describe(before), then, describe(now)));
}

}  // namespace

void LastAccesses::note(const Access& now) {
  const auto warp_of = [](const Access& access) { return access.thread / kWarp; };
  if (last_.thread != -1 && warp_of(last_) != warp_of(now)) {
    last_of_another_warp_ = last_;
    last_of_another_lane_ = {};
  } else if (last_.thread != now.thread) {
    last_of_another_lane_ = last_;
  }
  last_ = now;
}

const Access* LastAccesses::find_unordered(const Access& now) const {
  for (const Access* access : {&last_, &last_of_another_lane_, &last_of_another_warp_})
    if (!is_ordered(*access, now)) return access;
  return nullptr;
}

std::string place_of(const std::source_location& where) {
  const std::string path = where.file_name();
  return fmt::format("{}:{}", path.substr(path.rfind('/') + 1), where.line());
}

HostSharedMemory::HostSharedMemory(int64_t bytes)
    : bytes_(static_cast<size_t>(bytes)), states_(static_cast<size_t>(bytes)) {}

void HostSharedMemory::check_range(int64_t offset, int64_t bytes, const Access& now) const {
  if (offset >= 0 && bytes >= 0 && offset + bytes <= static_cast<int64_t>(bytes_.size())) return;
  throw KernelFault(fmt::format(
      "shared memory: expected an offset within {} bytes, got {} for {} bytes from {}",
      bytes_.size(), offset, bytes, describe(now)));
}

void HostSharedMemory::check_after_write(int64_t offset, const char* verb, const Access& now)
    const {
  const ByteState& state = states_[static_cast<size_t>(offset)];
  if (state.is_announced) {
    throw KernelFault(fmt::format(
        "shared memory, byte {}: expected the asynchronous copy of {} to be waited for before the "
        "{} of {}, got none",
        offset, describe(state.write), verb, describe(now)));
  }
  if (!is_ordered(state.write, now)) fail_order(offset, "write", state.write, verb, now);
}

void HostSharedMemory::check_after(
    int64_t offset,
    const char* first,
    const LastAccesses& before,
    const char* then,
    const Access& now) const {
  if (const Access* unordered = before.find_unordered(now))
    fail_order(offset, first, *unordered, then, now);
}

void HostSharedMemory::mark_write(int64_t offset, const char* verb, const Access& now) {
  check_after_write(offset, verb, now);
  ByteState& state = states_[static_cast<size_t>(offset)];
  check_after(offset, "atomic operation", state.atomics, verb, now);
  check_after(offset, "read", state.reads, verb, now);
  state = {.write = now, .reads = {}, .atomics = {}};
}

void HostSharedMemory::read(int64_t offset, int64_t bytes, void* to, const Access& now) {
  check_range(offset, bytes, now);
  for (int64_t i = offset; i < offset + bytes; ++i) {
    ByteState& state = states_[static_cast<size_t>(i)];
    if (state.write.thread == -1) {
      throw KernelFault(fmt::format(
          "shared memory, byte {}: expected something written before the read of {}, got nothing",
          i, describe(now)));
    }
    check_after_write(i, "read", now);
    check_after(i, "atomic operation", state.atomics, "read", now);
    state.reads.note(now);
  }
  std::memcpy(to, bytes_.data() + offset, static_cast<size_t>(bytes));
}

void HostSharedMemory::write(int64_t offset, int64_t bytes, const void* from, const Access& now) {
  check_range(offset, bytes, now);
  for (int64_t i = offset; i < offset + bytes; ++i)
    mark_write(i, "write", now);
  std::memcpy(bytes_.data() + offset, from, static_cast<size_t>(bytes));
}

std::byte* HostSharedMemory::access_atomically(int64_t offset, int64_t bytes, const Access& now) {
  check_range(offset, bytes, now);
  for (int64_t i = offset; i < offset + bytes; ++i) {
    ByteState& state = states_[static_cast<size_t>(i)];
    if (state.write.thread == -1) {
      throw KernelFault(fmt::format(
          "shared memory, byte {}: expected something written before the atomic operation of {}, "
          "got nothing",
          i, describe(now)));
    }
    check_after_write(i, "atomic operation", now);
    check_after(i, "read", state.reads, "atomic operation", now);
    state.atomics.note(now);
  }
  return bytes_.data() + offset;
}

void HostSharedMemory::announce(int64_t offset, int64_t bytes, const Access& now) {
  check_range(offset, bytes, now);
  for (int64_t i = offset; i < offset + bytes; ++i) {
    mark_write(i, "asynchronous copy", now);
    states_[static_cast<size_t>(i)].is_announced = true;
  }
}

void HostSharedMemory::land(int64_t offset, int64_t bytes, const void* from, const Access& now) {
  for (int64_t i = offset; i < offset + bytes; ++i) {
    states_[static_cast<size_t>(i)].is_announced = false;
    states_[static_cast<size_t>(i)].write = now;
  }
  std::memcpy(bytes_.data() + offset, from, static_cast<size_t>(bytes));
}

}  // namespace draftsmith::testing
