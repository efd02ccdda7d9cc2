// SPDX-License-Identifier: Apache-2.0
#include "tests/support/host_runner.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

namespace draftsmith::testing {
namespace {

using ops::cuda::BF16;
using ops::cuda::MmaLayout;
using ops::cuda::narrow;
using ops::cuda::pack;
using ops::cuda::Vector;
using ops::cuda::widen;

/// A kernel of 64 threads whose body is a lambda.
template <class Body>
struct Kernel {
  static constexpr int kThreads = 64;
  Body body;
  int64_t bytes = 0;
  int64_t shared_bytes() const { return bytes; }
  template <class Block>
  void operator()(Block& block) const {
    body(block);
  }
};

template <class Body>
void run(const Body& body, int64_t bytes = 0, uint64_t seed = 1) {
  HostMachine(seed).launch(1, Kernel<Body>{body, bytes});
}

/// Runs the body with several seeds; all must find the fault and say `parts`.
template <class Body>
void expect_fault(const Body& body, int64_t bytes, const std::vector<std::string>& parts) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    try {
      run(body, bytes, seed);
      ADD_FAILURE() << "no fault was found with seed " << seed;
    } catch (const KernelFault& fault) {
      for (const std::string& part : parts)
        EXPECT_NE(std::string(fault.what()).find(part), std::string::npos)
            << "'" << part << "' in: " << fault.what();
    }
  }
}

TEST(HostRunner, RunsEveryThreadOfEveryBlockInAnOrderOfTheSeed) {
  const auto order_with = [](uint64_t seed) {
    std::vector<int64_t> order;
    const auto body = [&](HostBlock& block) {
      order.push_back(block.index() * 64 + block.thread());
      EXPECT_EQ(block.count(), 3);
      EXPECT_EQ(block.warp() * 32 + block.lane(), block.thread());
    };
    HostMachine(seed).launch(3, Kernel<decltype(body)>{body});
    return order;
  };
  const auto order = order_with(1);
  EXPECT_EQ(std::set<int64_t>(order.begin(), order.end()).size(), 3 * 64);
  EXPECT_EQ(order.size(), 3 * 64);
  EXPECT_EQ(order, order_with(1));
  EXPECT_NE(order, order_with(2));
}

TEST(HostRunner, HandsSharedMemoryOnAtABarrier) {
  std::vector<int> got(64);
  run(
      [&](HostBlock& block) {
        const auto tile = block.shared<int>(64);
        for (int round = 0; round < 3; ++round) {
          tile.store(block.thread(), block.thread() + round);
          block.sync();
          got[static_cast<size_t>(block.thread())] = tile.load(63 - block.thread());
          block.sync();
        }
      },
      256);
  for (int i = 0; i < 64; ++i)
    EXPECT_EQ(got[static_cast<size_t>(i)], 63 - i + 2);
}

TEST(HostRunner, FindsAMissingBarrierBeforeARead) {
  expect_fault(
      [](HostBlock& block) {
        const auto tile = block.shared<int>(64);
        tile.store(block.thread(), 1);
        block.sync();
        tile.store(block.thread(), 2);
        tile.load(63 - block.thread());
      },
      256, {"expected a barrier between the ", "host_runner_test.cpp:"});
}

TEST(HostRunner, FindsAMissingBarrierBeforeAWrite) {
  expect_fault(
      [](HostBlock& block) {
        const auto tile = block.shared<int>(64);
        for (int round = 0; round < 2; ++round) {
          tile.store(block.thread(), round);
          block.sync();
          tile.load(63 - block.thread());  // the next round's store may be sooner
        }
      },
      256, {"expected a barrier between the "});
}

TEST(HostRunner, FindsTwoThreadsThatWriteTheSamePlace) {
  expect_fault(
      [](HostBlock& block) { block.shared<int>(1).store(0, 1); }, 16,
      {"byte 0", "between the write of thread ", "and the write of thread "});
}

TEST(HostRunner, OrdersAWarpByItsOwnBarrierOnly) {
  run(
      [](HostBlock& block) {
        const auto tile = block.shared<int>(64);
        tile.store(block.thread(), block.thread());
        block.sync_warp();
        EXPECT_EQ(tile.load(block.thread() ^ 1), block.thread() ^ 1);
      },
      256);
  expect_fault(
      [](HostBlock& block) {
        const auto tile = block.shared<int>(64);
        tile.store(block.thread(), 1);
        block.sync_warp();
        tile.load(63 - block.thread());  // of the other warp
      },
      256, {"shared memory, byte "});
  expect_fault(
      [](HostBlock& block) {
        const auto tile = block.shared<int>(64);
        tile.store(block.thread(), 1);
        block.shuffle_xor(0, 1);  // orders no memory
        tile.load(block.thread() ^ 1);
      },
      256, {"expected a barrier"});
}

TEST(HostRunner, RemembersAReadOfAnotherWarpWhicheverLanesReadLater) {
  expect_fault(
      [](HostBlock& block) {
        const auto tile = block.shared<int>(1);
        if (block.thread() == 0) tile.store(0, 1);
        block.sync();
        if (block.warp() == 0) block.sync_warp();  // so that thread 32 reads first
        if (block.thread() == 32 || block.thread() < 2) tile.load(0);
        if (block.warp() == 0) block.sync_warp();
        if (block.thread() == 0) tile.store(0, 2);
      },
      16, {"between the read of thread 32 ", "and the write of thread 0 "});
}

TEST(HostRunner, RemembersAReadOfALaneWhateverAnotherWarpReadLater) {
  expect_fault(
      [](HostBlock& block) {
        const auto tile = block.shared<int>(1);
        if (block.thread() == 0) tile.store(0, 1);
        block.sync();
        if (block.thread() == 1) tile.load(0);
        if (block.warp() == 1) block.sync_warp();
        if (block.thread() == 32 || block.thread() == 33) tile.load(0);
        if (block.warp() == 1) block.sync_warp();
        if (block.thread() == 33) tile.store(0, 2);
      },
      16, {"between the read of thread 1 ", "and the write of thread 33 "});
}

TEST(HostRunner, RemembersAnAtomicOperationOfAnotherWarp) {
  expect_fault(
      [](HostBlock& block) {
        const auto counter = block.shared<int>(1);
        if (block.thread() == 0) counter.store(0, 0);
        block.sync();
        if (block.thread() == 32) counter.add(0, 1);
        for (int i = 0; i < 8 && block.warp() == 0; ++i)
          block.sync_warp();
        if (block.thread() == 0) counter.add(0, 1);
        if (block.warp() == 0) block.sync_warp();
        if (block.thread() == 1) counter.load(0);
      },
      16, {"between the atomic operation of thread 32 ", "and the read of thread 1 "});
}

TEST(HostRunner, OrdersAnAtomicOperationAfterWhatWasWrittenBefore) {
  expect_fault(
      [](HostBlock& block) {
        const auto counter = block.shared<int>(1);
        if (block.thread() == 0) {
          counter.store(0, 0);
          counter.add(0, 1);
        }
        for (int i = 0; i < 8 && block.warp() == 1; ++i)
          block.sync_warp();
        if (block.thread() == 32) counter.add(0, 1);
      },
      16, {"between the write of thread 0 ", "and the atomic operation of thread 32 "});
}

TEST(HostRunner, FindsABarrierThatSomeThreadsNeverReach) {
  expect_fault(
      [](HostBlock& block) {
        if (block.thread() < 40) block.sync();
      },
      0, {"40 from 0 on in sync (host_runner_test.cpp:", "24 from 40 on at the end"});
}

TEST(HostRunner, FindsBarriersInDifferentPlaces) {
  expect_fault(
      [](HostBlock& block) {
        if (block.warp() == 0) {
          block.sync();
        } else {
          block.sync();
        }
      },
      0, {"32 from 0 on in sync", "32 from 32 on in sync"});
}

TEST(HostRunner, FindsAShuffleThatALaneLeavesOut) {
  expect_fault(
      [](HostBlock& block) {
        if (block.lane() != 5) block.shuffle(block.lane(), 3);
      },
      0, {"62 from 0 on in shuffle", "2 from 5 on at the end"});
}

TEST(HostRunner, FindsAccessesOutsideAnArray) {
  expect_fault(
      [](HostBlock& block) {
        const auto tile = block.shared<float>(64);
        block.shared<float>(64);
        tile.store(block.thread() + 1, 1);
      },
      512, {"expected an index below 64, got 64 from thread 63"});
  expect_fault(
      [](HostBlock& block) {
        const auto tile = block.shared<float>(64).part(0, 8);
        if (block.thread() == 0) tile.load_vector(6);
      },
      256, {"expected an index below 8, got 6 and 3 more"});
}

TEST(HostRunner, FindsMoreSharedMemoryThanAskedFor) {
  expect_fault([](HostBlock& block) { block.shared<float>(65); }, 256, {"at least 272, got 256"});
  expect_fault([](HostBlock&) {}, 100 << 10, {"at most 101376, got 102400"});
  expect_fault(
      [](HostBlock& block) { block.shared<float>(block.thread() == 3 ? 8 : 4); }, 256,
      {"in thread "});
}

TEST(HostRunner, FindsReadsOfWhatNothingWrote) {
  expect_fault(
      [](HostBlock& block) {
        const auto tile = block.shared<int>(64);
        if (block.thread() != 7) tile.store(block.thread(), 1);
        block.sync();
        tile.load(63 - block.thread());
      },
      256, {"byte 28: expected something written before the read of thread 56"});
}

TEST(HostRunner, FindsVectorsThatAreNotAligned) {
  expect_fault(
      [](HostBlock& block) {
        const auto tile = block.shared<float>(64);
        if (block.thread() == 0) tile.store_vector(2, {});
      },
      256, {"multiple of 16 bytes, got 8"});
}

TEST(HostRunner, ShufflesAndVotesWithinAWarp) {
  run([](HostBlock& block) {
    EXPECT_EQ(block.shuffle(block.thread(), 3), block.warp() * 32 + 3);
    EXPECT_EQ(block.shuffle_xor(block.thread(), 16), block.thread() ^ 16);
    EXPECT_EQ(block.ballot(block.lane() % 2 == 1), 0xAAAAAAAAu);
    EXPECT_EQ(block.any(block.thread() == 40), block.warp() == 1);
  });
}

TEST(HostRunner, AddsAtomicallyInAnOrderOfTheSeed) {
  const auto order_with = [](uint64_t seed) {
    std::vector<int> place(64);
    int sum = 0;
    run(
        [&](HostBlock& block) {
          const auto counter = block.shared<int>(1);
          if (block.thread() == 0) counter.store(0, 0);
          block.sync();
          place[static_cast<size_t>(block.thread())] = counter.add(0, 1);
          block.atomic_add(&sum, 2);
          block.sync();
          EXPECT_EQ(counter.load(0), 64);
        },
        16, seed);
    EXPECT_EQ(sum, 128);
    return place;
  };
  const auto place = order_with(1);
  EXPECT_EQ(std::set<int>(place.begin(), place.end()).size(), 64);
  EXPECT_NE(place, order_with(2));
  expect_fault(
      [](HostBlock& block) {
        const auto counter = block.shared<int>(1);
        if (block.thread() == 0) counter.store(0, 0);
        block.sync();
        counter.add(0, 1);
        counter.load(0);
      },
      16, {"expected a barrier between the "});
}

TEST(HostRunner, LandsAsynchronousCopiesOnlyWhenTheyAreWaitedFor) {
  alignas(16) float source[2][256];
  for (int i = 0; i < 512; ++i)
    source[i / 256][i % 256] = static_cast<float>(i);
  run(
      [&](HostBlock& block) {
        const auto tile = block.shared<float>(512);
        const int i = block.thread() * 4;
        block.copy_async(tile, i, source[0] + i);
        block.commit_copies();
        block.copy_async(tile, 256 + i, source[1] + i, block.thread() != 1);
        block.commit_copies();
        block.wait_copies<1>();
        EXPECT_EQ(tile.load(i + 3), static_cast<float>(i + 3));
        block.wait_copies<0>();
        block.sync();
        EXPECT_EQ(tile.load(511 - i), static_cast<float>(block.thread() == 62 ? 0 : 511 - i));
      },
      2048);
}

TEST(HostRunner, FindsCopiesThatAreUsedTooSoon) {
  alignas(16) const float source[256] = {};
  expect_fault(
      [&](HostBlock& block) {
        const auto tile = block.shared<float>(256);
        block.copy_async(tile, block.thread() * 4, source);
        block.commit_copies();
        block.wait_copies<1>();
        tile.load(block.thread() * 4);
      },
      1024, {"expected the asynchronous copy of thread ", "to be waited for before the read"});
  expect_fault(
      [&](HostBlock& block) {  // its own thread has waited, another has not met it since
        const auto tile = block.shared<float>(256);
        block.copy_async(tile, block.thread() * 4, source);
        block.commit_copies();
        block.sync();
        block.wait_copies<0>();
        tile.load(255 - block.thread() * 4);
      },
      1024, {"shared memory, byte "});
  expect_fault(
      [&](HostBlock& block) {
        const auto tile = block.shared<float>(256);
        block.copy_async(tile, block.thread() * 4, source);
        block.commit_copies();
      },
      1024, {"to be waited for, got 1 groups on their way at the end of thread "});
  expect_fault(
      [&](HostBlock& block) {
        const auto tile = block.shared<float>(256);
        block.copy_async(tile, block.thread() * 4, source);
        block.wait_copies<0>();
      },
      1024, {"got 0 groups and copies in none on their way"});
  expect_fault(
      [&](HostBlock& block) {
        const auto tile = block.shared<float>(256);
        block.copy_async(tile, block.thread() * 4, source + 1);
      },
      1024, {"copy_async: expected a source that is a multiple of 16 bytes"});
}

TEST(HostRunner, MultipliesFragmentsInTheLayoutOfTheTensorCores) {
  // a[16, 16] row-major and b[16, 8] both in shared memory, as kernels keep them.
  float a[16][16], b[16][8];
  for (int i = 0; i < 256; ++i)
    a[i / 16][i % 16] = static_cast<float>(i % 7 - 3) + static_cast<float>(i % 16) / 16;
  for (int i = 0; i < 128; ++i)
    b[i / 8][i % 8] = static_cast<float>(i % 5 - 2) * 0.5F;
  float sums[16][8] = {};
  run(
      [&](HostBlock& block) {
        const auto a_tile = block.shared<BF16>(256);
        const auto b_tile = block.shared<BF16>(128);  // [k, column], read transposed
        for (int i = block.thread(); i < 256; i += 64)
          a_tile.store(i, narrow<BF16>(a[i / 16][i % 16]));
        for (int i = block.thread(); i < 128; i += 64)
          b_tile.store(i, narrow<BF16>(b[i / 8][i % 8]));
        block.sync();
        if (block.warp() == 1) return;
        uint32_t a_registers[4], b_registers[4];
        const int lane = block.lane();
        block.load_matrices(a_registers, a_tile, lane % 16 * 16 + lane / 16 * 8);
        block.load_transposed(b_registers, b_tile, lane % 16 * 8);
        const MmaLayout layout{lane};
        for (int i = 0; i < 4; ++i) {
          const int row = layout.a_row(i), k = layout.a_k(i);
          EXPECT_EQ(a_registers[i], pack(narrow<BF16>(a[row][k]), narrow<BF16>(a[row][k + 1])));
        }
        for (int i = 0; i < 2; ++i) {
          const int k = layout.b_k(i), column = layout.b_column();
          EXPECT_EQ(
              b_registers[i], pack(narrow<BF16>(b[k][column]), narrow<BF16>(b[k + 1][column])));
        }
        float sum[4] = {1, 1, 1, 1};
        const uint32_t b_half[2] = {b_registers[0], b_registers[1]};
        block.multiply(sum, a_registers, b_half);
        for (int i = 0; i < 4; ++i)
          sums[layout.sum_row(i)][layout.sum_column(i)] = sum[i];
      },
      768);
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      float sum = 1;
      for (int k = 0; k < 16; ++k)
        sum += a[row][k] * b[k][column];
      EXPECT_EQ(sums[row][column], sum);  // all products and sums are exact here
    }
  }
}

TEST(HostRunner, HasTheLayoutThatTheManualOfPtxDocuments) {
  // mma.m16n8k16: groups of 4 lanes hold a row of a and of the sum, and a column of b.
  const MmaLayout layout{13};  // group 3, second of its four
  EXPECT_EQ(layout.a_row(0), 3);
  EXPECT_EQ(layout.a_row(1), 11);
  EXPECT_EQ(layout.a_row(2), 3);
  EXPECT_EQ(layout.a_k(1), 2);
  EXPECT_EQ(layout.a_k(2), 10);
  EXPECT_EQ(layout.b_k(1), 10);
  EXPECT_EQ(layout.b_column(), 3);
  EXPECT_EQ(layout.sum_row(1), 3);
  EXPECT_EQ(layout.sum_row(2), 11);
  EXPECT_EQ(layout.sum_column(3), 3);
}

TEST(HostRunner, RoundsAsTheHardwareDoes) {
  EXPECT_EQ(widen(narrow<BF16>(1.00390625F)), 1.0F);       // a tie goes to even
  EXPECT_EQ(widen(narrow<BF16>(1.01171875F)), 1.015625F);  // so does this one
  EXPECT_EQ(widen(narrow<BF16>(-1.004F)), -1.0078125F);    // above the tie
}

TEST(HostRunner, LetsWhatABodyThrowsOutAndRunsAgain) {
  HostMachine machine(1);
  const auto thrower = [](HostBlock& block) {
    block.sync();
    if (block.thread() == 5) throw std::runtime_error("of a body");
    block.sync();
  };
  EXPECT_THROW(machine.launch(1, Kernel<decltype(thrower)>{thrower}), std::runtime_error);
  int count = 0;
  const auto counter = [&](HostBlock& block) {
    block.sync();
    ++count;
  };
  machine.launch(2, Kernel<decltype(counter)>{counter});
  EXPECT_EQ(count, 128);
}

}  // namespace
}  // namespace draftsmith::testing
