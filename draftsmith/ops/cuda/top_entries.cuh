// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "draftsmith/ops/cuda/kernels.h"
#include "draftsmith/ops/cuda/logit_row.cuh"

namespace draftsmith::ops::cuda {

template <class C>
struct alignas(2 * sizeof(C)) TopEntry {
  using Index = typename std::conditional<sizeof(C) == 4, int32_t, int64_t>::type;
  C value;
  Index index;
};

/// Of equal values the lower index is better.
template <class C>
DS_DEVICE bool is_better(const TopEntry<C>& a, const TopEntry<C>& b) {
  return a.value > b.value || (a.value == b.value && a.index < b.index);
}

constexpr int kTopTile = 2048;      // logits between two looks at the candidates
constexpr int kTopCapacity = 4096;  // candidates; a power of two, at least kMaxTop + kTopTile

/// What `find_top` needs of shared memory.
template <class C>
constexpr int64_t top_shared_bytes() {
  return shared_size<TopEntry<C>>(kTopCapacity) + shared_size<int>(1);
}

/// Sorts the first `count` entries, best first: a bitonic network over the next power of two.
template <int kThreads, class Block, class Entries>
DS_DEVICE void sort_entries(Block& block, const Entries& entries, int count) {
  int size = 2;
  while (size < count)
    size *= 2;
  using Entry = decltype(entries.load(0));
  for (int i = count + block.thread(); i < size; i += kThreads)
    entries.store(i, Entry{static_cast<decltype(Entry::value)>(-INFINITY), INT32_MAX});  // worst
  block.sync();
  for (int run = 2; run <= size; run *= 2) {
    for (int step = run / 2; step > 0; step /= 2) {
      for (int n = block.thread(); n < size / 2; n += kThreads) {
        const int low = 2 * n - (n & (step - 1));
        const Entry a = entries.load(low);
        const Entry b = entries.load(low + step);
        const bool is_downward = (low & run) == 0;
        if (is_better(b, a) == is_downward) {
          entries.store(low, b);
          entries.store(low + step, a);
        }
      }
      block.sync();
    }
  }
}

/// The best k of a row in entries [0, k) of the returned array, best first; k <= kMaxTop and
/// k <= width < 2^31. Candidates are what beats the k-th best of the last look; on logits that is
/// little after the first tile. Values are no NaN.
template <int N, int kThreads, class Block, class T, bool kHasTeacher>
DS_DEVICE auto
find_top(Block& block, const LogitRow<T, kHasTeacher>& row, int64_t width, int64_t k) {
  using Entry = TopEntry<Compute<T>>;
  static_assert(kMaxTop + kTopTile <= kTopCapacity && kTopTile % N == 0);
  const auto entries = block.template shared<Entry>(kTopCapacity);
  const auto counter = block.template shared<int>(1);
  if (block.thread() == 0) counter.store(0, 0);
  block.sync();
  bool is_full = false;  // entries [0, k) are the best so far, sorted
  Entry worst = {};      // of them; ids ascend from tile to tile, so an equal value is no better
  for (int64_t begin = 0; begin < width; begin += kTopTile) {
    const int64_t left = width - begin;
    const int64_t end = begin + (left < kTopTile ? left : kTopTile);
    for (int64_t i = begin + block.thread() * N; i < end; i += kThreads * N) {
      const auto logits = load_logits<N>(row, i);
      DS_UNROLL
      for (int j = 0; j < N; ++j) {
        if (is_full && !(logits.z[j] > worst.value)) continue;
        const auto index = static_cast<typename Entry::Index>(i + j);
        entries.store(counter.add(0, 1), Entry{logits.z[j], index});
      }
    }
    block.sync();
    const int count = counter.load(0);
    const bool is_last = end == width;
    if (is_last || (!is_full && count >= k) || count > kTopCapacity - kTopTile) {
      sort_entries<kThreads>(block, entries, count);
      is_full = count >= k;
      if (is_full) worst = entries.load(k - 1);
      if (is_full && block.thread() == 0) counter.store(0, static_cast<int>(k));
    }
    block.sync();
  }
  return entries;
}

}  // namespace draftsmith::ops::cuda
