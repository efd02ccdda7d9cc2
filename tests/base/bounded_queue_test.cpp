// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/base/bounded_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>

namespace draftsmith {
namespace {

TEST(BoundedQueue, KeepsTheOrderAndDrainsAfterClosing) {
  BoundedQueue<int> queue(3);
  for (int i = 0; i < 3; ++i)
    EXPECT_TRUE(queue.push(i));
  queue.close();
  EXPECT_FALSE(queue.push(3));
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(queue.pop(), i);
  EXPECT_EQ(queue.pop(), std::nullopt);
}

TEST(BoundedQueue, NeverHoldsMoreThanItsCapacity) {
  constexpr int kItems = 2000;
  BoundedQueue<int> queue(4);
  std::atomic<int> num_inside = 0;  // counted before a push and after a pop
  std::atomic<int> most = 0;
  std::jthread producer([&] {
    for (int i = 0; i < kItems; ++i) {
      most = std::max(most.load(), ++num_inside);
      queue.push(i);
    }
    queue.close();
  });
  int expected = 0;
  while (const auto item = queue.pop()) {
    --num_inside;
    EXPECT_EQ(*item, expected++);
  }
  EXPECT_EQ(expected, kItems);
  EXPECT_LE(most, 4 + 2);  // one waits for room, one was popped but not counted yet
}

TEST(BoundedQueue, HandsOutPlacesInOrderWhoeverFillsThem) {
  constexpr int kProducers = 5, kItems = 500;
  BoundedQueue<int> queue(2);
  std::vector<std::jthread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&queue, p] {
      for (int i = p; i < kItems; i += kProducers)
        queue.push_at(i, i);
    });
  }
  for (int i = 0; i < kItems; ++i)
    EXPECT_EQ(queue.pop(), i);
}

TEST(BoundedQueue, GivesEachItemToOneOfSeveralTakers) {
  constexpr int kItems = 1000;
  BoundedQueue<int> queue(3);
  std::vector<std::vector<int>> taken(4);
  {
    std::vector<std::jthread> takers;
    for (auto& mine : taken) {
      takers.emplace_back([&] {
        while (const auto item = queue.pop())
          mine.push_back(*item);
      });
    }
    for (int i = 0; i < kItems; ++i)
      queue.push(i);
    queue.close();
  }
  std::vector<int> all;
  for (const auto& mine : taken) {
    EXPECT_TRUE(std::is_sorted(mine.begin(), mine.end()));
    all.insert(all.end(), mine.begin(), mine.end());
  }
  std::sort(all.begin(), all.end());
  std::vector<int> expected(kItems);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(all, expected);
}

TEST(BoundedQueue, WakesBothSidesWhenItIsClosed) {
  BoundedQueue<int> full(1), empty(1);
  full.push(0);
  bool was_pushed = true;
  std::optional<int> popped = 0;
  {
    std::jthread pusher([&] { was_pushed = full.push(1); });
    std::jthread popper([&] { popped = empty.pop(); });
    full.close();
    empty.close();
  }
  EXPECT_FALSE(was_pushed);
  EXPECT_EQ(popped, std::nullopt);
}

TEST(BoundedQueue, CarriesTheFirstErrorToEveryTaker) {
  BoundedQueue<int> queue(2);
  queue.push(0);
  std::vector<std::string> messages(2);
  {
    BoundedQueue<int> empty(1);
    std::vector<std::jthread> takers;
    for (auto& message : messages) {
      takers.emplace_back([&] {
        try {
          empty.pop();
        } catch (const std::exception& error) {
          message = error.what();
        }
      });
    }
    empty.abort(std::make_exception_ptr(std::runtime_error("the first")));
    empty.abort(std::make_exception_ptr(std::runtime_error("the second")));
    takers.clear();
  }
  EXPECT_EQ(messages, (std::vector<std::string>{"the first", "the first"}));
  queue.abort();
  EXPECT_EQ(queue.pop(), std::nullopt) << "an aborted queue must not give out what it held";
}

TEST(BoundedQueue, WakesWhoeverWaitsForRoomWhenItIsAborted) {
  BoundedQueue<std::shared_ptr<int>> queue(1);
  const auto item = std::make_shared<int>(1);
  queue.push(item);
  bool was_pushed = true;
  {
    std::jthread pusher([&] { was_pushed = queue.push_at(1, item); });
    queue.abort();
  }
  EXPECT_FALSE(was_pushed);
  EXPECT_EQ(item.use_count(), 1) << "items must be dropped";
}

}  // namespace
}  // namespace draftsmith
