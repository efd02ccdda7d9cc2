// SPDX-License-Identifier: Apache-2.0
#include "tests/support/host_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <random>
#include <string>

#include "draftsmith/base/random.h"

namespace draftsmith::testing {

using ops::cuda::kVectorBytes;
using ops::cuda::kWarp;

namespace {

/// Leaves the body of a fibre whose block has failed.
struct Cancelled {};

struct Copy {
  int64_t offset;
  std::array<std::byte, kVectorBytes> bytes;
};

constexpr std::string_view kBlockBarrier = "sync";

bool is_same(const std::source_location& a, const std::source_location& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::string_view(a.file_name()) == b.file_name());
}

}  // namespace

struct BlockRun::Thread {
  Fibre* fibre;
  std::string_view waits_in = {};  // an operation, or none: it can go on
  std::source_location where = {};
  LaneValues given = {};
  int block_barriers = 0;
  int warp_barriers = 0;
  size_t allocations = 0;
  int64_t allocated = 0;  // bytes
  std::vector<Copy> open_copies;
  std::deque<std::vector<Copy>> copy_groups;
};

struct BlockRun::Warp {
  std::array<LaneValues, kWarp> values = {};  // of the last collective operation
};

BlockRun::BlockRun(
    int64_t index,
    int64_t count,
    std::span<const std::unique_ptr<Fibre>> fibres,
    int64_t shared_bytes)
    : index_(index), count_(count), shared_bytes_(shared_bytes), shared_(shared_bytes) {
  for (const auto& fibre : fibres) {
    threads_.push_back(std::make_unique<Thread>());
    threads_.back()->fibre = fibre.get();
  }
  warps_.resize(fibres.size() / kWarp);
}

BlockRun::~BlockRun() { cancel(); }

void BlockRun::run(const std::function<void(HostBlock&)>& body, uint64_t seed) {
  for (int i = 0; i < num_threads(); ++i) {
    threads_[static_cast<size_t>(i)]->fibre->start([this, i, &body] {
      if (is_cancelled_) return;
      try {
        HostBlock block(this, i);
        body(block);
      } catch (const Cancelled&) {
        return;
      }
      const Thread& self = *threads_[static_cast<size_t>(i)];
      if (self.open_copies.empty() && self.copy_groups.empty()) return;
      throw KernelFault(fmt::format(
          "block {}: expected every asynchronous copy to be waited for, got {} groups{} on their "
          "way "
          "at the end of thread {}",
          index_, self.copy_groups.size(), self.open_copies.empty() ? "" : " and copies in none",
          i));
    });
  }
  std::mt19937_64 random(seed);
  std::vector<Thread*> ready;
  while (true) {
    ready.clear();
    bool is_over = true;
    for (const auto& thread : threads_) {
      if (thread->fibre->is_done()) continue;
      is_over = false;
      if (thread->waits_in.empty()) ready.push_back(thread.get());
    }
    if (is_over) return;
    if (ready.empty()) fail_waiting();
    // All that can go on do, in a random order; then whoever is free by then.
    std::shuffle(ready.begin(), ready.end(), random);
    for (Thread* thread : ready)
      thread->fibre->resume();
    release_waiting();
  }
}

void BlockRun::cancel() {
  is_cancelled_ = true;
  for (const auto& thread : threads_) {
    if (!thread->fibre->is_done()) thread->fibre->resume();
  }
}

void BlockRun::stop_here(Thread& thread) {
  thread.fibre->suspend();
  if (is_cancelled_) throw Cancelled();
}

void BlockRun::release_waiting() {
  const auto is_gathered = [](auto begin, auto end) {
    const Thread& first = **begin;
    return !first.waits_in.empty() && std::all_of(begin, end, [&](const auto& thread) {
      return thread->waits_in == first.waits_in && is_same(thread->where, first.where);
    });
  };
  if (threads_[0]->waits_in == kBlockBarrier && is_gathered(threads_.begin(), threads_.end())) {
    for (const auto& thread : threads_) {
      thread->waits_in = {};
      ++thread->block_barriers;
      ++thread->warp_barriers;
    }
    return;
  }
  for (size_t w = 0; w < warps_.size(); ++w) {
    const auto begin = threads_.begin() + static_cast<std::ptrdiff_t>(w * kWarp);
    if ((*begin)->waits_in == kBlockBarrier || !is_gathered(begin, begin + kWarp)) continue;
    for (size_t lane = 0; lane < kWarp; ++lane) {
      warps_[w].values[lane] = begin[static_cast<std::ptrdiff_t>(lane)]->given;
      begin[static_cast<std::ptrdiff_t>(lane)]->waits_in = {};
    }
  }
}

void BlockRun::fail_waiting() const {
  constexpr int kShown = 4;
  std::string places;
  int num_places = 0;
  std::vector<bool> is_told(threads_.size());
  for (size_t i = 0; i < threads_.size(); ++i) {
    if (is_told[i]) continue;
    const auto state_of = [](const Thread& thread) {
      if (thread.fibre->is_done()) return std::string("at the end");
      return fmt::format("in {} ({})", thread.waits_in, place_of(thread.where));
    };
    const std::string state = state_of(*threads_[i]);
    int same = 0;
    for (size_t j = i; j < threads_.size(); ++j) {
      if (state_of(*threads_[j]) != state) continue;
      is_told[j] = true;
      ++same;
    }
    if (num_places++ < kShown)
      places += fmt::format("{}{} from {} on {}", places.empty() ? "" : "; ", same, i, state);
  }
  throw KernelFault(fmt::format(
      "block {}: expected all threads of a {} to meet in one place, got threads that wait for "
      "ever: "
      "{}{}",
      index_, num_places > 1 ? "block or warp" : "warp", places,
      num_places > kShown ? "; .." : ""));
}

int64_t BlockRun::allocate_shared(int thread, int64_t bytes, const std::source_location& where) {
  Thread& self = *threads_[static_cast<size_t>(thread)];
  if (self.allocations == allocations_.size()) allocations_.push_back(bytes);
  if (allocations_[self.allocations] != bytes) {
    throw KernelFault(fmt::format(
        "shared memory: expected {} bytes in thread {}, as in other threads, got {} ({})",
        allocations_[self.allocations], thread, bytes, place_of(where)));
  }
  ++self.allocations;
  const int64_t offset = self.allocated;
  self.allocated += (bytes + kVectorBytes - 1) / kVectorBytes * kVectorBytes;
  if (self.allocated > shared_bytes_) {
    throw KernelFault(fmt::format(
        "shared memory: expected shared_bytes() of at least {}, got {} ({})", self.allocated,
        shared_bytes_, place_of(where)));
  }
  return offset;
}

Access BlockRun::access_of(int thread, const std::source_location& where) const {
  const Thread& self = *threads_[static_cast<size_t>(thread)];
  return {thread, self.block_barriers, self.warp_barriers, where};
}

void BlockRun::wait_for_block(int thread, const std::source_location& where) {
  Thread& self = *threads_[static_cast<size_t>(thread)];
  self.waits_in = kBlockBarrier;
  self.where = where;
  stop_here(self);
}

const std::array<LaneValues, kWarp>& BlockRun::wait_for_warp(
    int thread,
    std::string_view operation,
    const LaneValues& given,
    const std::source_location& where) {
  Thread& self = *threads_[static_cast<size_t>(thread)];
  self.waits_in = operation;
  self.where = where;
  self.given = given;
  stop_here(self);
  return warps_[static_cast<size_t>(thread / kWarp)].values;
}

void BlockRun::count_warp_barrier(int thread) {
  ++threads_[static_cast<size_t>(thread)]->warp_barriers;
}

void BlockRun::yield(int thread) { stop_here(*threads_[static_cast<size_t>(thread)]); }

void BlockRun::begin_copy(int thread, int64_t offset, const void* from, const Access& now) {
  Copy copy{offset, {}};
  if (from != nullptr) std::memcpy(copy.bytes.data(), from, kVectorBytes);
  shared_.announce(offset, kVectorBytes, now);
  threads_[static_cast<size_t>(thread)]->open_copies.push_back(copy);
}

void BlockRun::commit_copies(int thread) {
  Thread& self = *threads_[static_cast<size_t>(thread)];
  self.copy_groups.push_back(std::move(self.open_copies));
  self.open_copies.clear();
}

void BlockRun::wait_copies(int thread, int newest, const std::source_location& where) {
  Thread& self = *threads_[static_cast<size_t>(thread)];
  while (self.copy_groups.size() > static_cast<size_t>(newest)) {
    for (const Copy& copy : self.copy_groups.front())
      shared_.land(copy.offset, kVectorBytes, copy.bytes.data(), access_of(thread, where));
    self.copy_groups.pop_front();
  }
}

void HostBlock::fail_alignment(const Where& where) const {
  throw KernelFault(fmt::format(
      "copy_async: expected a source that is a multiple of 16 bytes, got another in thread {} ({})",
      thread_, place_of(where)));
}

void HostBlock::multiply(
    float (&sum)[4],
    const uint32_t (&a)[4],
    const uint32_t (&b)[2],
    Where where) {
  struct Registers {
    uint32_t a[4];
    uint32_t b[2];
  };
  const Registers mine{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  const auto all = exchange("multiply", mine, where);
  const auto half = [](uint32_t pair, int k) {
    return ops::cuda::widen(ops::cuda::BF16{static_cast<uint16_t>(k % 2 == 0 ? pair : pair >> 16)});
  };
  // The lane and register that hold an element, the other way round than MmaLayout tells it.
  const auto a_at = [&](int row, int k) {
    return half(all[static_cast<size_t>(row % 8 * 4 + k % 8 / 2)].a[row / 8 + k / 8 * 2], k);
  };
  const auto b_at = [&](int k, int column) {
    return half(all[static_cast<size_t>(column * 4 + k % 8 / 2)].b[k / 8], k);
  };
  const ops::cuda::MmaLayout layout{lane()};
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 16; ++k)
      sum[i] += a_at(layout.sum_row(i), k) * b_at(k, layout.sum_column(i));
}

void HostMachine::run_grid(
    int64_t blocks,
    int threads,
    int64_t shared_bytes,
    const std::function<void(HostBlock&)>& body) {
  if (shared_bytes > ops::cuda::kMaxSharedBytes) {
    throw KernelFault(fmt::format(
        "shared_bytes: expected at most {}, got {}", ops::cuda::kMaxSharedBytes, shared_bytes));
  }
  const auto num_threads = static_cast<size_t>(threads);
  while (fibres_.size() < num_threads)
    fibres_.push_back(std::make_unique<Fibre>());
  const uint64_t launch = launches_++;
  std::vector<int64_t> order(static_cast<size_t>(blocks));
  for (size_t i = 0; i < order.size(); ++i)
    order[i] = static_cast<int64_t>(i);
  std::mt19937_64 random(hash_key({seed_, launch}));
  std::shuffle(order.begin(), order.end(), random);
  for (const int64_t index : order) {
    BlockRun run(index, blocks, std::span(fibres_).first(num_threads), shared_bytes);
    run.run(body, random());
  }
}

}  // namespace draftsmith::testing
