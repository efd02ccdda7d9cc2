// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/mixture.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "draftsmith/base/error.h"

namespace draftsmith::data {
namespace {

constexpr size_t kKeptOrders = 2;
constexpr double kMostPasses = 1000;

}  // namespace

Mixture::Mixture(std::vector<double> weights, CountBatches count_batches)
    : shares_(std::move(weights)), count_batches_(std::move(count_batches)) {
  const double sum = std::accumulate(shares_.begin(), shares_.end(), 0.0);
  DS_CHECK(!shares_.empty() && sum > 0);
  Start start;
  double epoch_batches = 0;
  std::vector<double> sizes;
  for (size_t i = 0; i < shares_.size(); ++i) {
    shares_[i] /= sum;
    DS_CHECK(shares_[i] > 0);
    sizes.push_back(static_cast<double>(count_batches_(static_cast<int64_t>(i), 0)));
    epoch_batches = std::max(epoch_batches, sizes.back() / shares_[i]);
    start.taken.push_back(0);
    start.places.push_back({static_cast<int64_t>(i), 0, 0});
  }
  for (size_t i = 0; i < shares_.size(); ++i) {
    const double passes = epoch_batches * shares_[i] / sizes[i];
    if (passes <= kMostPasses) continue;
    throw ConfigError(
        {.what = "data.path",
         .expected = fmt::format("weights that read a dataset at most {:.0f} times", kMostPasses),
         .got = fmt::format("{:.0f} times dataset {}", passes, i),
         .hint = "a smaller weight for it"});
  }
  starts_.push_back(std::move(start));
}

/// The turns of an epoch from its start; `place` is moved to its end.
Mixture::Order Mixture::walk(Start& place, int64_t epoch) const {
  Order order;
  int64_t total = std::accumulate(place.taken.begin(), place.taken.end(), int64_t{0});
  const auto is_behind = [&](const Turn& own) { return own.epoch <= epoch; };
  while (std::any_of(place.places.begin(), place.places.end(), is_behind)) {
    ++total;
    size_t next = 0;
    double most = -1e300;
    for (size_t i = 0; i < shares_.size(); ++i) {
      const double lag =
          shares_[i] * static_cast<double>(total) - static_cast<double>(place.taken[i]);
      if (lag <= most) continue;
      most = lag;
      next = i;
    }
    Turn& own = place.places[next];
    order.push_back(own);
    ++place.taken[next];
    if (++own.batch >= count_batches_(own.source, own.epoch)) own = {own.source, own.epoch + 1, 0};
  }
  return order;
}

Mixture::SharedOrder Mixture::find_order(int64_t epoch) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [number, known] : orders_)
    if (number == epoch) return known;
  return nullptr;
}

Mixture::Start Mixture::find_start(int64_t epoch) const {
  const std::lock_guard lock(mutex_);
  return starts_.at(static_cast<size_t>(epoch));
}

Mixture::SharedOrder Mixture::order(int64_t epoch) const {
  if (auto known = find_order(epoch)) return known;
  // The sources plan their epochs meanwhile: those who ask about a known epoch do not wait.
  const std::lock_guard walking(walking_);
  if (auto known = find_order(epoch)) return known;
  const auto count_starts = [&] {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(starts_.size());
  };
  SharedOrder order;
  for (auto first = std::min(epoch, count_starts() - 1); first <= epoch; ++first) {
    Start place = find_start(first);
    order = std::make_shared<const Order>(walk(place, first));
    const std::lock_guard lock(mutex_);
    if (first + 1 < static_cast<int64_t>(starts_.size())) continue;
    starts_.push_back(std::move(place));
    lengths_.push_back(static_cast<int64_t>(order->size()));
  }
  const std::lock_guard lock(mutex_);
  if (orders_.size() == kKeptOrders) orders_.erase(orders_.begin());
  orders_.emplace_back(epoch, order);
  return order;
}

int64_t Mixture::batches_of_epoch(int64_t epoch) const {
  {
    const std::lock_guard lock(mutex_);
    if (epoch < static_cast<int64_t>(lengths_.size())) return lengths_[static_cast<size_t>(epoch)];
  }
  return static_cast<int64_t>(order(epoch)->size());
}

Turn Mixture::turn(int64_t epoch, int64_t batch) const {
  return order(epoch)->at(static_cast<size_t>(batch));
}

std::vector<int64_t> Mixture::taken_before(int64_t epoch, int64_t batch) const {
  const auto turns = order(epoch);
  auto taken = find_start(epoch).taken;
  for (size_t i = 0; i < std::min(turns->size(), static_cast<size_t>(batch)); ++i)
    ++taken[static_cast<size_t>((*turns)[i].source)];
  return taken;
}

}  // namespace draftsmith::data
