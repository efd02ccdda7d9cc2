// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/eval/acceptance.h"

#include <algorithm>

#include "draftsmith/base/error.h"
#include "draftsmith/base/random.h"

namespace draftsmith::eval {
namespace {

constexpr int64_t kBootstrapDraws = 2000;
constexpr uint64_t kBootstrapSeed = 1;

struct Totals {
  int64_t tokens = 0;
  int64_t rounds = 0;
};

Interval bootstrap_pooled(const std::vector<Totals>& responses) {
  std::vector<double> draws;
  for (int64_t draw = 0; draw < kBootstrapDraws; ++draw) {
    Totals sum;
    for (size_t i = 0; i < responses.size(); ++i) {
      const uint64_t key = hash_key({kBootstrapSeed, static_cast<uint64_t>(draw), i});
      const Totals& picked = responses[key % responses.size()];
      sum.tokens += picked.tokens;
      sum.rounds += picked.rounds;
    }
    draws.push_back(static_cast<double>(sum.tokens) / static_cast<double>(sum.rounds));
  }
  std::sort(draws.begin(), draws.end());
  const auto at = [&](double share) {
    return draws[static_cast<size_t>(share * static_cast<double>(draws.size() - 1))];
  };
  return {at(0.025), at(0.975)};
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
    Totals total;
    for (const Round& round : rounds) {
      DS_CHECK(round.accepted < block_size && round.emitted <= block_size);
      total.tokens += round.emitted;
      ++total.rounds;
      ++report.histogram[static_cast<size_t>(round.emitted)];
      for (int64_t k = 0; k < round.accepted; ++k)
        ++report.by_slot[static_cast<size_t>(k)];
    }
    totals.push_back(total);
    report.tokens += total.tokens;
    report.rounds += total.rounds;
    mean_sum += static_cast<double>(total.tokens) / static_cast<double>(total.rounds);
  }
  if (report.rounds == 0) return report;
  report.pooled = static_cast<double>(report.tokens) / static_cast<double>(report.rounds);
  report.mean_per_response = mean_sum / static_cast<double>(totals.size());
  report.pooled_95 = bootstrap_pooled(totals);
  for (double& share : report.by_slot)
    share /= static_cast<double>(report.rounds);
  return report;
}

}  // namespace draftsmith::eval
