// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/memory/host_allocator.h"

#include <fmt/format.h>
#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include "draftsmith/base/error.h"

namespace draftsmith::memory {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSmallest = size_t{1} << 18;      // smaller blocks are left to the C library
constexpr size_t kMaxIdleBytes = size_t{3} << 30;  // beyond it, freed blocks go back at once

/// A block's header stands in the alignment gap before its data.
struct Header {
  size_t capacity;   // what was asked of `make`: the key under which it waits for reuse
  size_t requested;  // bytes of the tensor
};
static_assert(sizeof(Header) <= kAlignment);

/// Sizes in steps of an eighth of their power of two, so that slightly different shapes share
/// blocks.
size_t round_size(size_t bytes) {
  size_t power = kSmallest;
  while (power * 2 <= bytes)
    power *= 2;
  const size_t step = power / 8;
  return (bytes + step - 1) / step * step;
}

class HostAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::DeviceType::CPU)};
    void* data = take(bytes);
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }

  HostBytes bytes() {
    std::lock_guard lock(mutex_);
    return bytes_;
  }
  void limit(int64_t bytes) {
    std::lock_guard lock(mutex_);
    limit_ = bytes;
  }
  void name_phase(const char* name) {
    std::lock_guard lock(mutex_);
    phase_ = name;
  }
  void reset_peak() {
    std::lock_guard lock(mutex_);
    bytes_.peak = bytes_.live;
  }

 private:
  static Header& header_of(void* data) {
    return *reinterpret_cast<Header*>(static_cast<char*>(data) - kAlignment);
  }
  static void release(void* data);

  void* take(size_t requested) {
    const size_t capacity = requested < kSmallest
                                ? (requested + kAlignment - 1) / kAlignment * kAlignment
                                : round_size(requested);
    void* data = nullptr;
    std::unique_lock lock(mutex_);
    if (limit_ > 0 && bytes_.live + static_cast<int64_t>(requested) > limit_) refuse(requested);
    const auto found = idle_.lower_bound(capacity);
    if (found != idle_.end() && found->first <= capacity + capacity / 4) {
      data = found->second;
      bytes_.idle -= static_cast<int64_t>(found->first);
      idle_.erase(found);
    }
    bytes_.live += static_cast<int64_t>(requested);
    bytes_.peak = std::max(bytes_.peak, bytes_.live);
    lock.unlock();
    if (data == nullptr) {
      try {
        data = make(capacity);
      } catch (...) {
        lock.lock();
        bytes_.live -= static_cast<int64_t>(requested);
        throw;
      }
    }
    header_of(data).requested = requested;
    return data;
  }

  [[noreturn]] void refuse(size_t requested) const {
    throw DeviceError(
        {.what = "memory for a tensor",
         .expected = fmt::format("at most {} bytes in tensors, memory.budget", limit_),
         .got = fmt::format(
             "{} bytes asked with {} in use, {} free", requested, bytes_.live,
             limit_ - bytes_.live),
         .where = phase_,
         .hint = "draftsmith plan, a smaller --data.tokens_per_batch or --data.num_anchors"});
  }

  static void* make(size_t capacity) {
    const bool is_huge = capacity >= kHugePage;
    const size_t alignment = is_huge ? kHugePage : kAlignment;
    const size_t total = (capacity + kAlignment + alignment - 1) / alignment * alignment;
    void* block = std::aligned_alloc(alignment, total);
    if (block == nullptr) throw std::bad_alloc();
    if (is_huge) ::madvise(block, total, MADV_HUGEPAGE);
    void* data = static_cast<char*>(block) + kAlignment;
    header_of(data).capacity = capacity;
    return data;
  }

  void give_back(void* data) {
    const Header header = header_of(data);
    {
      std::lock_guard lock(mutex_);
      bytes_.live -= static_cast<int64_t>(header.requested);
      const bool is_kept = header.capacity >= kSmallest &&
                           static_cast<size_t>(bytes_.idle) + header.capacity <= kMaxIdleBytes;
      if (is_kept) {
        bytes_.idle += static_cast<int64_t>(header.capacity);
        idle_.emplace(header.capacity, data);
        return;
      }
    }
    std::free(static_cast<char*>(data) - kAlignment);
  }

  std::mutex mutex_;
  std::multimap<size_t, void*> idle_;  // by capacity
  HostBytes bytes_;
  int64_t limit_ = 0;
  const char* phase_ = "before the first step";
};

/// Never destroyed: tensors in static variables may outlive everything.
HostAllocator& allocator() {
  static auto* instance = new HostAllocator;
  return *instance;
}

void HostAllocator::release(void* data) {
  if (data != nullptr) allocator().give_back(data);
}

}  // namespace

void install_host_allocator() {
  // Small tensors and the scratch memory of libraries stay with the C library: let it keep what
  // it has instead of returning it to the system after every operation.
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  ::mallopt(M_TOP_PAD, 16 << 20);
  c10::SetCPUAllocator(&allocator(), /*priority=*/1);
}

HostBytes host_bytes() { return allocator().bytes(); }

void limit_host_bytes(int64_t limit) { allocator().limit(limit); }

void name_host_phase(const char* name) { allocator().name_phase(name); }

void reset_host_peak() { allocator().reset_peak(); }

}  // namespace draftsmith::memory
