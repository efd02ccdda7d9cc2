// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace draftsmith::data {

/// Whose turn it is, and where that source stands.
struct Turn {
  int64_t source = 0;
  int64_t epoch = 0;  // of the source itself
  int64_t batch = 0;
};

/// Which source of a mixture gives which batch. Every batch is of one source; the next is that
/// which lags most behind its share. A source goes on where it stood, through its own epochs;
/// an epoch of the mixture, number e, ends when every source has been read through e + 1 times.
/// All of it follows from the weights and the numbers of batches. Safe from any thread.
class Mixture {
 public:
  using CountBatches = std::function<int64_t(int64_t source, int64_t epoch)>;

  /// Errors: ConfigError if a source would be read more than 1,000 times in an epoch.
  Mixture(std::vector<double> weights, CountBatches count_batches);

  int64_t batches_of_epoch(int64_t epoch) const;

  /// Whether the epoch has a batch of this number. Every epoch has a first one, so that who asks for
  /// no more does not wait for its plan.
  bool has_batch(int64_t epoch, int64_t batch) const {
    return batch == 0 || batch < batches_of_epoch(epoch);
  }
  Turn turn(int64_t epoch, int64_t batch) const;

  /// Batches of every source before this place.
  std::vector<int64_t> taken_before(int64_t epoch, int64_t batch) const;

  /// Shares of the batches as planned; their sum is 1.
  const std::vector<double>& shares() const { return shares_; }

 private:
  struct Start {
    std::vector<int64_t> taken;  // batches of each source
    std::vector<Turn> places;    // where each source stands
  };
  using Order = std::vector<Turn>;

  using SharedOrder = std::shared_ptr<const Order>;

  Order walk(Start& place, int64_t epoch) const;
  SharedOrder order(int64_t epoch) const;
  SharedOrder find_order(int64_t epoch) const;  // null if it is not kept
  Start find_start(int64_t epoch) const;        // of a known epoch

  std::vector<double> shares_;
  CountBatches count_batches_;
  mutable std::mutex walking_;            // held while an order is made; taken before mutex_
  mutable std::mutex mutex_;              // of what follows, held for a moment only
  mutable std::vector<Start> starts_;     // of the epochs up to the last known
  mutable std::vector<int64_t> lengths_;  // batches of the known epochs
  mutable std::vector<std::pair<int64_t, SharedOrder>> orders_;  // of two epochs, newest last
};

}  // namespace draftsmith::data
