// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/eval/acceptance.h"

#include <algorithm>
#include <utility>

#include "draftsmith/base/error.h"
#include "draftsmith/base/random.h"

namespace draftsmith::eval {
namespace {

constexpr int64_t kBootstrapDraws = 2000;
constexpr uint64_t kBootstrapSeed = 1;

struct Totals {
  int64_t tokens = 0;
  int64_t rounds = 0;

  void operator+=(const Totals& other) {
    tokens += other.tokens;
    rounds += other.rounds;
  }
  double ratio() const {
    return rounds == 0 ? 0 : static_cast<double>(tokens) / static_cast<double>(rounds);
  }
};

Totals add_rounds(const std::vector<Round>& rounds) {
  Totals total;
  for (const Round& round : rounds)
    total += {round.emitted, 1};
  return total;
}

/// The middle 95 % of `statistic(pick)` over draws, where pick(i) is the i-th of `count` responses
/// drawn with replacement.
template <class Statistic>
Interval bootstrap(size_t count, const Statistic& statistic) {
  std::vector<double> draws;
  for (int64_t draw = 0; draw < kBootstrapDraws; ++draw)
    draws.push_back(statistic([&](size_t i) {
      return hash_key({kBootstrapSeed, static_cast<uint64_t>(draw), i}) % count;
    }));
  std::sort(draws.begin(), draws.end());
  const auto at = [&](double share) {
    return draws[static_cast<size_t>(share * static_cast<double>(draws.size() - 1))];
  };
  return {at(0.025), at(0.975)};
}

Interval bootstrap_pooled(const std::vector<Totals>& responses) {
  return bootstrap(responses.size(), [&](const auto& pick) {
    Totals sum;
    for (size_t i = 0; i < responses.size(); ++i)
      sum += responses[pick(i)];
    return sum.ratio();
  });
}

}  // namespace

std::vector<Round> count_emitted(
    const std::vector<std::vector<int64_t>>& raw,
    int64_t tokens_left,
    const std::vector<int64_t>& stop_ids) {
  std::vector<Round> rounds;
  for (const auto& tokens : raw) {
    if (tokens_left <= 0) break;
    const auto stop =
        std::find_first_of(tokens.begin(), tokens.end(), stop_ids.begin(), stop_ids.end());
    const auto until_stop =
        static_cast<int64_t>(stop - tokens.begin()) + (stop != tokens.end() ? 1 : 0);
    Round round;
    round.accepted = static_cast<int64_t>(tokens.size()) - 1;
    round.emitted = std::min(until_stop, tokens_left);
    tokens_left -= round.emitted;
    rounds.push_back(round);
    if (stop != tokens.end()) break;
  }
  return rounds;
}

AcceptanceReport report_acceptance(
    const std::vector<std::vector<Round>>& responses,
    int64_t block_size) {
  AcceptanceReport report;
  report.responses = static_cast<int64_t>(responses.size());
  report.by_slot.assign(static_cast<size_t>(block_size - 1), 0);
  report.histogram.assign(static_cast<size_t>(block_size + 1), 0);
  std::vector<Totals> totals;
  double mean_sum = 0;
  for (const auto& rounds : responses) {
    if (rounds.empty()) continue;
    const Totals total = add_rounds(rounds);
    for (const Round& round : rounds) {
      DS_CHECK(round.accepted < block_size && round.emitted <= block_size);
      ++report.histogram[static_cast<size_t>(round.emitted)];
      for (int64_t k = 0; k < round.accepted; ++k)
        ++report.by_slot[static_cast<size_t>(k)];
    }
    totals.push_back(total);
    report.tokens += total.tokens;
    report.rounds += total.rounds;
    mean_sum += total.ratio();
  }
  if (report.rounds == 0) return report;
  report.pooled = static_cast<double>(report.tokens) / static_cast<double>(report.rounds);
  report.mean_per_response = mean_sum / static_cast<double>(totals.size());
  report.pooled_95 = bootstrap_pooled(totals);
  for (double& share : report.by_slot)
    share /= static_cast<double>(report.rounds);
  return report;
}

PairedDifference compare_acceptance(
    const std::vector<std::vector<Round>>& left,
    const std::vector<std::vector<Round>>& right) {
  DS_CHECK(left.size() == right.size());
  std::vector<std::pair<Totals, Totals>> pairs;
  for (size_t i = 0; i < left.size(); ++i) {
    // Both answers are the target's, so both sides have rounds or neither has.
    if (!left[i].empty() && !right[i].empty())
      pairs.emplace_back(add_rounds(left[i]), add_rounds(right[i]));
  }
  if (pairs.empty()) return {};
  const auto difference = [&](const auto& pick) {
    Totals left_sum;
    Totals right_sum;
    for (size_t i = 0; i < pairs.size(); ++i) {
      left_sum += pairs[pick(i)].first;
      right_sum += pairs[pick(i)].second;
    }
    return right_sum.ratio() - left_sum.ratio();
  };
  return {difference([](size_t i) { return i; }), bootstrap(pairs.size(), difference)};
}

}  // namespace draftsmith::eval
