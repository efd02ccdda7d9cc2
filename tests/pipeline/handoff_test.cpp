// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/handoff.h"

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <numeric>
#include <vector>

#include "draftsmith/base/random.h"
#include "draftsmith/pipeline/staging.h"

namespace draftsmith::pipeline {
namespace {

/// Two queues of work that go on at random, as two streams do, with what each waits for.
class RandomQueues {
 public:
  RandomQueues(const StagingOrder& order, std::vector<int> source, uint64_t seed)
      : source_(std::move(source)),
        target_(source_.size(), -1),
        buffers_(
            static_cast<size_t>(order.num_buffers()),
            std::vector<int>(static_cast<size_t>(order.piece_bytes()))),
        times_filled_(buffers_.size(), 0),
        times_emptied_(buffers_.size(), 0),
        fills_asked_(buffers_.size(), 0),
        empties_asked_(buffers_.size(), 0),
        seed_(seed) {}

  void await_empty(int64_t i) {
    const size_t b = static_cast<size_t>(i);
    filling_.push_back(
        {[this, b, wanted = empties_asked_[b]] { return times_emptied_[b] >= wanted; }, [] {}});
  }
  void fill(int64_t i, int64_t begin, int64_t count) {
    const size_t b = static_cast<size_t>(i);
    ++fills_asked_[b];
    filling_.push_back(
        {[] { return true; },
         [this, b, begin, count] {
           std::copy_n(source_.begin() + begin, count, buffers_[b].begin());
           ++times_filled_[b];
         }});
  }
  void await_full(int64_t i) {
    const size_t b = static_cast<size_t>(i);
    emptying_.push_back(
        {[this, b, wanted = fills_asked_[b]] { return times_filled_[b] >= wanted; }, [] {}});
  }
  void empty(int64_t i, int64_t begin, int64_t count) {
    const size_t b = static_cast<size_t>(i);
    ++empties_asked_[b];
    emptying_.push_back(
        {[] { return true; },
         [this, b, begin, count] {
           std::copy_n(buffers_[b].begin(), count, target_.begin() + begin);
           ++times_emptied_[b];
         }});
  }

  /// Whether all of it came to an end; the most pieces that were in buffers at once.
  bool run() {
    for (uint64_t turn = 0; !filling_.empty() || !emptying_.empty(); ++turn) {
      auto& first = hash_key({seed_, turn}) % 2 == 0 ? filling_ : emptying_;
      auto& second = &first == &filling_ ? emptying_ : filling_;
      if (!advance(first) && !advance(second)) return false;
      most_full_ = std::max(most_full_, sum(times_filled_) - sum(times_emptied_));
    }
    return true;
  }

  const std::vector<int>& target() const { return target_; }
  int most_full() const { return most_full_; }

 private:
  struct Work {
    std::function<bool()> may_run;
    std::function<void()> run;
  };

  static bool advance(std::deque<Work>& queue) {
    if (queue.empty() || !queue.front().may_run()) return false;
    queue.front().run();
    queue.pop_front();
    return true;
  }
  static int sum(const std::vector<int>& times) {
    return std::accumulate(times.begin(), times.end(), 0);
  }

  std::vector<int> source_, target_;
  std::vector<std::vector<int>> buffers_;
  std::vector<int> times_filled_, times_emptied_, fills_asked_, empties_asked_;
  std::deque<Work> filling_, emptying_;
  uint64_t seed_;
  int most_full_ = 0;
};

TEST(StagingOrder, BringsEveryByteThroughAFewBuffersWhateverTheTiming) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    StagingOrder order(5, 3);
    std::vector<int> source(101);
    std::iota(source.begin(), source.end(), static_cast<int>(seed));
    RandomQueues queues(order, source, seed);
    order.copy(queues, 101);
    ASSERT_TRUE(queues.run());
    EXPECT_EQ(queues.target(), source);
    EXPECT_LE(queues.most_full(), 3);
    EXPECT_GE(queues.most_full(), 2);  // both sides go on at once
  }
}

TEST(StagingOrder, GoesOnWithTheBuffersOfTheLastCopy) {
  StagingOrder order(4, 2);
  const std::vector<int> first = {1, 2, 3, 4, 5}, second = {6, 7, 8};
  // One queue for both, as the streams are: the second copy may not overtake the first.
  std::vector<int> both = first;
  both.insert(both.end(), second.begin(), second.end());
  struct Shifted {
    RandomQueues& queues;
    int64_t by;
    void await_empty(int64_t i) { queues.await_empty(i); }
    void fill(int64_t i, int64_t begin, int64_t count) { queues.fill(i, by + begin, count); }
    void await_full(int64_t i) { queues.await_full(i); }
    void empty(int64_t i, int64_t begin, int64_t count) { queues.empty(i, by + begin, count); }
  };
  for (uint64_t seed = 0; seed < 20; ++seed) {
    RandomQueues queues(order, both, seed);
    Shifted one{queues, 0}, two{queues, 5};
    order.copy(one, 5);
    order.copy(two, 3);
    ASSERT_TRUE(queues.run());
    EXPECT_EQ(queues.target(), both);
  }
}

TEST(Handoff, LeavesABatchBetweenHostAndHostAsItIs) {
  TrainBatch batch;
  batch.features = torch::ones({1, 3, 2});
  batch.embedded = torch::ones({1, 4, 2});
  const auto features = batch.features;
  Handoff way(torch::kCPU, torch::kCPU);
  way.send(batch);
  EXPECT_EQ(batch.ready, nullptr);
  receive(batch);
  EXPECT_TRUE(batch.features.is_same(features));
  EXPECT_FALSE(batch.teacher_states.defined());
}

}  // namespace
}  // namespace draftsmith::pipeline
