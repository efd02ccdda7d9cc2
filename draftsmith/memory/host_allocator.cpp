// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/memory/host_allocator.h"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include "draftsmith/memory/out_of_memory.h"
#include "draftsmith/memory/pages.h"
#include "draftsmith/memory/product_scratch.h"
#include "draftsmith/ops/cuda/stage.h"
#include "draftsmith/ops/product.h"

namespace draftsmith::memory {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kSmallest = size_t{1} << 18;  // smaller blocks are left to the C library

/// The phases that a thread is in, the outermost first.
std::vector<const char*>& own_phases() {
  thread_local std::vector<const char*> phases;
  return phases;
}

std::atomic<const char*> first_failed_phase = nullptr;

/// A block's header stands in the alignment gap before its data.
struct Header {
  size_t capacity;   // what was asked of `make`: the key under which it waits for reuse
  size_t requested;  // bytes of the tensor
  bool is_scratch;   // of a matrix product
};
static_assert(sizeof(Header) <= kAlignment);

size_t round_up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

/// Sizes in steps of a sixteenth of their power of two, so that slightly different shapes share
/// blocks.
size_t round_size(size_t bytes) {
  size_t power = kSmallest;
  while (power * 2 <= bytes)
    power *= 2;
  return round_up(bytes, power / 16);
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
  /// For threads that are in no phase.
  void name_last_phase(const char* name) {
    std::lock_guard lock(mutex_);
    last_phase_ = name;
  }
  std::map<std::string, int64_t> phase_peaks() {
    std::lock_guard lock(mutex_);
    std::map<std::string, int64_t> peaks;
    for (const auto& [name, bytes] : phase_peaks_) {  // a name may stand in several files
      auto& peak = peaks[name];
      peak = std::max(peak, bytes);
    }
    return peaks;
  }
  void reset_peak() {
    std::lock_guard lock(mutex_);
    bytes_.peak = bytes_.live;
    bytes_.scratch_peak = bytes_.scratch;
    phase_peaks_.clear();
  }

 private:
  static Header& header_of(void* data) {
    return *reinterpret_cast<Header*>(static_cast<char*>(data) - kAlignment);
  }
  static void release(void* data);

  void* take(size_t requested) {
    const size_t capacity =
        requested < kSmallest ? round_up(requested, kAlignment) : round_size(requested);
    const bool is_scratch = ops::is_in_product();
    void* data = nullptr;
    std::vector<Pages> spare;
    std::unique_lock lock(mutex_);
    if (!is_scratch && limit_ > 0 && bytes_.live + static_cast<int64_t>(requested) > limit_)
      refuse(requested);
    const int64_t peak = bytes_.peak, most_held = most_held_;
    const auto found = idle_.lower_bound(capacity);
    if (found != idle_.end() && found->first <= capacity + capacity / 8) data = take_idle(found);
    count(requested, is_scratch);
    held_ += static_cast<int64_t>(data == nullptr ? capacity : header_of(data).capacity);
    most_held_ = std::max(most_held_, held_);
    // What waits for reuse is never more than tensors have taken already.
    while (data == nullptr && !idle_.empty() && held_ + bytes_.idle > most_held_)
      spare.push_back(take_spare(static_cast<size_t>(held_ + bytes_.idle - most_held_)));
    lock.unlock();
    if (data == nullptr) {
      try {
        data = make(capacity, std::move(spare));
      } catch (const std::bad_alloc&) {
        lock.lock();
        uncount(requested, is_scratch);
        held_ -= static_cast<int64_t>(capacity);
        bytes_.peak = std::max(peak, bytes_.live);
        most_held_ = std::max(most_held, held_);
        fail(requested, "memory of the system", "none left");
      }
    }
    header_of(data).requested = requested;
    header_of(data).is_scratch = is_scratch;
    if (!own_phases().empty()) {
      lock.lock();
      note_phase_peaks();
    }
    return data;
  }

  void count(size_t requested, bool is_scratch) {
    int64_t& live = is_scratch ? bytes_.scratch : bytes_.live;
    int64_t& peak = is_scratch ? bytes_.scratch_peak : bytes_.peak;
    live += static_cast<int64_t>(requested);
    peak = std::max(peak, live);
  }
  void uncount(size_t requested, bool is_scratch) {
    (is_scratch ? bytes_.scratch : bytes_.live) -= static_cast<int64_t>(requested);
  }

  /// A few names: a search costs less than a hash.
  void note_phase_peaks() {
    for (const char* name : own_phases()) {
      auto found = std::find_if(
          phase_peaks_.begin(), phase_peaks_.end(),
          [name](const auto& entry) { return entry.first == name; });
      if (found == phase_peaks_.end()) found = phase_peaks_.insert(found, {name, 0});
      found->second = std::max(found->second, bytes_.live);
    }
  }

  [[noreturn]] void refuse(size_t requested) const {
    fail(
        requested, fmt::format("at most {} bytes in tensors, memory.budget", limit_),
        fmt::format("{} free", limit_ - bytes_.live));
  }

  [[noreturn]] void fail(size_t requested, std::string expected, const std::string& rest) const {
    throw OutOfMemory(describe_lack(
        std::move(expected),
        fmt::format("{} bytes asked with {} in use, {}", requested, bytes_.live, rest),
        own_phases().empty() ? last_phase_ : own_phases().back()));
  }

  void* take_idle(std::multimap<size_t, void*>::iterator place) {
    void* data = place->second;
    bytes_.idle -= static_cast<int64_t>(place->first);
    idle_.erase(place);
    return data;
  }

  void keep_idle(void* data) {
    const size_t capacity = header_of(data).capacity;
    bytes_.idle += static_cast<int64_t>(capacity);
    idle_.emplace(capacity, data);
  }

  /// Of the largest idle block: all its pages, or the last of them if `bytes` leave some huge ones.
  Pages take_spare(size_t bytes) {
    void* const data = take_idle(std::prev(idle_.end()));
    Pages pages = pages_of(data);
    if (pages.bytes < bytes + kHugePage) return pages;
    const size_t kept = (pages.bytes - bytes) / kHugePage * kHugePage;
    header_of(data).capacity = kept - kAlignment;
    keep_idle(data);
    return {pages.begin + kept, pages.bytes - kept};
  }

  static void* make(size_t capacity, std::vector<Pages> spare) {
    void* block = nullptr;
    if (capacity < kSmallest) {
      for (const Pages& pages : spare)
        unmap_pages(pages);
      block = std::aligned_alloc(kAlignment, capacity + kAlignment);
    } else {
      block = map_pages(round_up(capacity + kAlignment, kPage), std::move(spare)).begin;
    }
    if (block == nullptr) throw std::bad_alloc();
    void* data = static_cast<char*>(block) + kAlignment;
    header_of(data).capacity = capacity;
    return data;
  }

  /// Of a block that was not left to the C library.
  static Pages pages_of(void* data) {
    return {
        static_cast<char*>(data) - kAlignment,
        round_up(header_of(data).capacity + kAlignment, kPage)};
  }

  void give_back(void* data) {
    const Header header = header_of(data);
    {
      std::lock_guard lock(mutex_);
      uncount(header.requested, header.is_scratch);
      held_ -= static_cast<int64_t>(header.capacity);
      if (header.capacity >= kSmallest) return keep_idle(data);
    }
    std::free(static_cast<char*>(data) - kAlignment);
  }

  std::mutex mutex_;
  std::multimap<size_t, void*> idle_;  // by capacity
  HostBytes bytes_;
  int64_t held_ = 0;       // in blocks of tensors: `live`, rounded up
  int64_t most_held_ = 0;  // largest `held_` ever
  int64_t limit_ = 0;
  const char* last_phase_ = "before the first step";
  std::vector<std::pair<const char*, int64_t>> phase_peaks_;
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
  // Kernels that the library has compiled, each for one shape of a product and a quarter of a megabyte or
  // more. Batches differ in their shapes, and a step has one or two hundred.
  ::setenv(
      "ONEDNN_PRIMITIVE_CACHE_CAPACITY", fmt::format("{}", kMostProductKernels).c_str(),
      /*overwrite=*/0);
  // Each thread's list of the same in front of that cache, 1,024 unless told otherwise: looking a kernel
  // up takes microseconds, and what a list holds is held twice.
  ::setenv(
      "LRU_CACHE_CAPACITY", fmt::format("{}", kListedProductKernels).c_str(), /*overwrite=*/0);
  // A kernel is for a number of threads too, and a thread that works beside others sets its own when it
  // first asks for it, away from theirs. In the middle of a step it would compile its kernels again.
  at::parallel_for(
      0, at::get_num_threads(), 1, [](int64_t, int64_t) { std::ignore = at::get_num_threads(); });
  c10::SetCPUAllocator(&allocator(), /*priority=*/1);
}

HostBytes host_bytes() { return allocator().bytes(); }

void limit_host_bytes(int64_t limit) { allocator().limit(limit); }

void begin_host_phase(const char* name) {
  own_phases().push_back(name);
  allocator().name_last_phase(name);
  ops::cuda::mark_stage(name);
}

void end_host_phase(bool has_failed) {
  auto& phases = own_phases();
  const char* none = nullptr;
  if (has_failed) first_failed_phase.compare_exchange_strong(none, phases.back());
  phases.pop_back();
  const char* const outer = phases.empty() ? nullptr : phases.back();
  if (outer != nullptr) allocator().name_last_phase(outer);
  ops::cuda::mark_stage(outer);
}

const char* first_failed_host_phase() { return first_failed_phase; }

std::map<std::string, int64_t> host_phase_peaks() { return allocator().phase_peaks(); }

void reset_host_peak() { allocator().reset_peak(); }

}  // namespace draftsmith::memory
