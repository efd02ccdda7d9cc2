// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <source_location>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "draftsmith/ops/cuda/device.cuh"

#include "tests/support/fibre.h"
#include "tests/support/host_shared_memory.h"

/// Runs GPU kernels (ops/cuda/device.cuh says how one is written) on the host, so that they are
/// proved where no GPU is.
///
///   HostMachine machine(/*seed=*/1);
///   machine.launch(/*blocks=*/rows, kernel);   // kernel(block) in every thread of every block
///
/// The blocks of a grid run one after the other in a random order. A block's threads are fibres:
/// one runs until it waits (barrier, shuffle, vote, `multiply`, atomic operation) and then a random
/// one of those that can go on does. The seed fixes the order; a test runs several.
///
/// KernelFault is thrown, naming threads and source lines, for
///   * a barrier, shuffle or vote that some threads never reach, or reach in another place: what
///     would hang or be undefined on a GPU;
///   * an access to shared memory that no barrier orders after another thread's, in any schedule,
///     not only the one that ran; that is out of bounds; or that reads what nothing wrote in this
///     block;
///   * memory touched while an asynchronous copy is on its way to it, a copy that is never waited
///     for, and 16-byte accesses that are not aligned;
///   * more shared memory than `shared_bytes`, or than every architecture has.
/// Accesses outside global memory are AddressSanitizer's to find (tools/test --asan).
///
/// Not seen: races in global memory between threads or blocks, bank conflicts, registers, time.
/// `multiply` sums in float32 in the order of k; a tensor core's order and rounding differ in the
/// last bits, so tolerances leave room for them.
namespace draftsmith::testing {

class BlockRun;
class HostBlock;

/// Shared memory as kernels see it. Copies of it refer to the same elements.
template <class T>
class HostShared {
 public:
  using Vector = ops::cuda::Vector<T>;

  HostShared(BlockRun* run, int thread, int64_t offset, int64_t count)
      : run_(run), thread_(thread), offset_(offset), count_(count) {}

  T load(int64_t i, std::source_location where = std::source_location::current()) const;
  void store(int64_t i, T value, std::source_location where = std::source_location::current())
      const;
  Vector load_vector(int64_t i, std::source_location where = std::source_location::current()) const;
  void store_vector(
      int64_t i,
      const Vector& vector,
      std::source_location where = std::source_location::current()) const;
  T add(int64_t i, T value, std::source_location where = std::source_location::current()) const;

  /// Elements [begin, begin + count) as an array of its own.
  HostShared part(
      int64_t begin,
      int64_t count,
      std::source_location where = std::source_location::current()) const;

  /// The place of elements [i, i + count) in shared memory, in bytes.
  int64_t find(int64_t i, int64_t count, int64_t alignment, const std::source_location& where)
      const;

 private:
  BlockRun* run_;
  int thread_;
  int64_t offset_;  // in bytes
  int64_t count_;
};

/// What the lanes of a warp hand each other in a collective operation.
using LaneValues = std::array<std::byte, 64>;

/// A block that is running: its threads, barriers and shared memory.
class BlockRun {
 public:
  /// Borrows a fibre per thread.
  BlockRun(
      int64_t index,
      int64_t count,
      std::span<const std::unique_ptr<Fibre>> fibres,
      int64_t shared_bytes);
  ~BlockRun();

  /// Runs all threads to their end. Errors: KernelFault.
  void run(const std::function<void(HostBlock&)>& body, uint64_t seed);

  int64_t index() const { return index_; }
  int64_t count() const { return count_; }
  int num_threads() const { return static_cast<int>(threads_.size()); }
  HostSharedMemory& shared() { return shared_; }

  /// Where a new array of shared memory begins. Every thread must ask for the same ones.
  int64_t allocate_shared(int thread, int64_t bytes, const std::source_location& where);

  Access access_of(int thread, const std::source_location& where) const;
  void wait_for_block(int thread, const std::source_location& where);
  /// Until all lanes of the thread's warp are here; the result holds what each gave.
  const std::array<LaneValues, ops::cuda::kWarp>& wait_for_warp(
      int thread,
      std::string_view operation,
      const LaneValues& given,
      const std::source_location& where);
  void count_warp_barrier(int thread);
  /// Lets others go first, perhaps.
  void yield(int thread);

  void begin_copy(int thread, int64_t offset, const void* from, const Access& now);
  void commit_copies(int thread);
  void wait_copies(int thread, int newest, const std::source_location& where);

 private:
  struct Thread;
  struct Warp;
  void stop_here(Thread& thread);
  void release_waiting();
  [[noreturn]] void fail_waiting() const;
  void cancel();

  int64_t index_;
  int64_t count_;
  int64_t shared_bytes_;
  HostSharedMemory shared_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<Warp> warps_;
  std::vector<int64_t> allocations_;  // sizes in bytes, in the order of the first thread to ask
  bool is_cancelled_ = false;
};

/// A thread's view of its block; see ops/cuda/device.cuh.
class HostBlock {
  using Where = std::source_location;

 public:
  HostBlock(BlockRun* run, int thread) : run_(run), thread_(thread) {}

  int thread() const { return thread_; }
  int lane() const { return thread_ % ops::cuda::kWarp; }
  int warp() const { return thread_ / ops::cuda::kWarp; }
  int64_t index() const { return run_->index(); }
  int64_t count() const { return run_->count(); }

  void sync(Where where = Where::current()) { run_->wait_for_block(thread_, where); }

  void sync_warp(Where where = Where::current()) {
    run_->wait_for_warp(thread_, "sync_warp", {}, where);
    run_->count_warp_barrier(thread_);
  }

  template <class T>
  T shuffle(T value, int lane, Where where = Where::current()) {
    return exchange("shuffle", value, where)[static_cast<size_t>(lane % ops::cuda::kWarp)];
  }
  template <class T>
  T shuffle_xor(T value, int mask, Where where = Where::current()) {
    return exchange("shuffle_xor", value, where)[static_cast<size_t>(lane() ^ mask)];
  }
  bool any(bool vote, Where where = Where::current()) {
    return count_votes("any", vote, where) != 0;
  }
  uint32_t ballot(bool vote, Where where = Where::current()) {
    return count_votes("ballot", vote, where);
  }

  template <class T>
  HostShared<T> shared(int64_t count, Where where = Where::current()) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    return {run_, thread_, run_->allocate_shared(thread_, bytes, where), count};
  }

  template <class T>
  T atomic_add(T* to, T value) {
    run_->yield(thread_);
    const T old = *to;
    *to = static_cast<T>(old + value);
    return old;
  }

  template <class T>
  void copy_async(
      const HostShared<T>& tile,
      int64_t i,
      const T* from,
      bool is_valid = true,
      Where where = Where::current()) {
    using ops::cuda::kVectorBytes;
    if (is_valid && reinterpret_cast<uintptr_t>(from) % kVectorBytes != 0) fail_alignment(where);
    const int64_t offset =
        tile.find(i, kVectorBytes / static_cast<int64_t>(sizeof(T)), kVectorBytes, where);
    run_->begin_copy(thread_, offset, is_valid ? from : nullptr, run_->access_of(thread_, where));
  }
  void commit_copies() { run_->commit_copies(thread_); }
  template <int N>
  void wait_copies(Where where = Where::current()) {
    run_->wait_copies(thread_, N, where);
  }

  template <class T>
  void load_matrices(
      uint32_t (&matrices)[4],
      const HostShared<T>& tile,
      int64_t i,
      Where where = Where::current()) {
    static_assert(sizeof(T) == 2);
    const auto rows = exchange("load_matrices", tile.find(i, 8, 16, where), where);
    for (int m = 0; m < 4; ++m) {
      const int64_t offset = rows[static_cast<size_t>(m * 8 + lane() / 4)] + lane() % 4 * 4;
      run_->shared().read(offset, 4, &matrices[m], run_->access_of(thread_, where));
    }
  }
  template <class T>
  void load_transposed(
      uint32_t (&matrices)[4],
      const HostShared<T>& tile,
      int64_t i,
      Where where = Where::current()) {
    static_assert(sizeof(T) == 2);
    const auto rows = exchange("load_transposed", tile.find(i, 8, 16, where), where);
    for (int m = 0; m < 4; ++m) {
      uint16_t pair[2];
      for (int j = 0; j < 2; ++j) {
        const int64_t offset =
            rows[static_cast<size_t>(m * 8 + lane() % 4 * 2 + j)] + lane() / 4 * 2;
        run_->shared().read(offset, 2, &pair[j], run_->access_of(thread_, where));
      }
      matrices[m] = ops::cuda::pack({pair[0]}, {pair[1]});
    }
  }

  void multiply(
      float (&sum)[4],
      const uint32_t (&a)[4],
      const uint32_t (&b)[2],
      Where where = Where::current());

 private:
  template <class T>
  std::array<T, ops::cuda::kWarp>
  exchange(std::string_view operation, T value, const Where& where) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(LaneValues));
    LaneValues given{};
    std::memcpy(given.data(), &value, sizeof(T));
    const auto& all = run_->wait_for_warp(thread_, operation, given, where);
    std::array<T, ops::cuda::kWarp> values;
    for (size_t lane = 0; lane < all.size(); ++lane)
      std::memcpy(&values[lane], all[lane].data(), sizeof(T));
    return values;
  }
  uint32_t count_votes(std::string_view operation, bool vote, const Where& where) {
    uint32_t votes = 0;
    const auto given = exchange(operation, vote, where);
    for (size_t lane = 0; lane < given.size(); ++lane)
      votes |= static_cast<uint32_t>(given[lane]) << lane;
    return votes;
  }
  [[noreturn]] void fail_alignment(const Where& where) const;

  BlockRun* run_;
  int thread_;
};

/// Launches kernels as CudaMachine (ops/cuda/block.cuh) does.
class HostMachine {
 public:
  explicit HostMachine(uint64_t seed) : seed_(seed) {}

  template <class Kernel>
  void launch(int64_t blocks, const Kernel& kernel) {
    static_assert(Kernel::kThreads % ops::cuda::kWarp == 0 && Kernel::kThreads <= 1024);
    run_grid(
        blocks, Kernel::kThreads, kernel.shared_bytes(), [&](HostBlock& block) { kernel(block); });
  }

 private:
  void run_grid(
      int64_t blocks,
      int threads,
      int64_t shared_bytes,
      const std::function<void(HostBlock&)>& body);

  uint64_t seed_;
  uint64_t launches_ = 0;
  std::vector<std::unique_ptr<Fibre>> fibres_;  // as many as the largest block had threads
};

template <class T>
int64_t HostShared<T>::find(
    int64_t i,
    int64_t count,
    int64_t alignment,
    const std::source_location& where) const {
  const int64_t offset = offset_ + i * static_cast<int64_t>(sizeof(T));
  if (i < 0 || i + count > count_) {
    throw KernelFault(
        "shared memory: expected an index below " + std::to_string(count_) + ", got " +
        std::to_string(i) + (count > 1 ? " and " + std::to_string(count - 1) + " more" : "") +
        " from thread " + std::to_string(thread_) + " (" + place_of(where) + ")");
  }
  if (offset % alignment != 0) {
    throw KernelFault(
        "shared memory: expected a place that is a multiple of " + std::to_string(alignment) +
        " bytes, got " + std::to_string(offset) + " from thread " + std::to_string(thread_) + " (" +
        place_of(where) + ")");
  }
  return offset;
}

template <class T>
T HostShared<T>::load(int64_t i, std::source_location where) const {
  T value;
  run_->shared().read(
      find(i, 1, alignof(T), where), sizeof(T), &value, run_->access_of(thread_, where));
  return value;
}

template <class T>
void HostShared<T>::store(int64_t i, T value, std::source_location where) const {
  run_->shared().write(
      find(i, 1, alignof(T), where), sizeof(T), &value, run_->access_of(thread_, where));
}

template <class T>
typename HostShared<T>::Vector HostShared<T>::load_vector(int64_t i, std::source_location where)
    const {
  Vector vector;
  const int64_t offset = find(i, static_cast<int64_t>(std::size(vector.values)), 16, where);
  run_->shared().read(offset, sizeof(Vector), &vector, run_->access_of(thread_, where));
  return vector;
}

template <class T>
void HostShared<T>::store_vector(int64_t i, const Vector& vector, std::source_location where)
    const {
  const int64_t offset = find(i, static_cast<int64_t>(std::size(vector.values)), 16, where);
  run_->shared().write(offset, sizeof(Vector), &vector, run_->access_of(thread_, where));
}

template <class T>
T HostShared<T>::add(int64_t i, T value, std::source_location where) const {
  run_->yield(thread_);
  std::byte* at = run_->shared().access_atomically(
      find(i, 1, alignof(T), where), sizeof(T), run_->access_of(thread_, where));
  T old;
  std::memcpy(&old, at, sizeof(T));
  const T sum = static_cast<T>(old + value);
  std::memcpy(at, &sum, sizeof(T));
  return old;
}

template <class T>
HostShared<T> HostShared<T>::part(int64_t begin, int64_t count, std::source_location where) const {
  return {run_, thread_, find(begin, count, 1, where), count};
}

}  // namespace draftsmith::testing
