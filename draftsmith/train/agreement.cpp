// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/agreement.h"

#include <algorithm>
#include <string>
#include <type_traits>

#include "draftsmith/formats/json.h"

namespace draftsmith::train {
using formats::Json;
namespace {

/// Calls `visit` with every number of the sums. Counts are exact in float64 below 2^53.
template <class Sums, class Visit>
void visit_numbers(Sums& sums, Visit&& visit) {
  for (auto* number : {&sums.loss_sum, &sums.ce_sum, &sums.kl_sum, &sums.cap_sum, &sums.weight_sum})
    visit(*number);
  for (auto* number : {&sums.blocks, &sums.all_blocks, &sums.accepted_sum, &sums.tokens})
    visit(*number);
  for (auto& number : sums.correct)
    visit(number);
  for (auto& number : sums.count)
    visit(number);
  visit(sums.expected.chain_sum);
  visit(sums.expected.tree_sum);
  visit(sums.expected.tree_accepted_sum);
  visit(sums.expected.tree_blocks);
  auto& times = sums.times;
  for (auto* number :
       {&times.data, &times.target, &times.forward, &times.head, &times.backward, &times.exchange,
        &times.optimizer})
    visit(*number);
}

std::string describe(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.substr(0, text.find('\n'));
  }
}

}  // namespace

void sum_over_ranks(
    const pipeline::Ranks& ranks,
    std::vector<MetricSums>& parts,
    int64_t block_size,
    const std::exception_ptr& failure) {
  if (ranks.size() > 1) {
    if (failure) ranks.announce_end(describe(failure));
    std::vector<double> numbers = {failure ? 1.0 : 0.0};
    for (MetricSums& sums : parts) {
      sums.correct.resize(static_cast<size_t>(block_size));  // a rank without a batch has none
      sums.count.resize(static_cast<size_t>(block_size));
      visit_numbers(sums, [&](auto& number) { numbers.push_back(static_cast<double>(number)); });
    }
    numbers = ranks.sum(numbers);
    if (numbers[0] > 0 && !failure) ranks.follow_end();
    size_t next = 1;
    for (MetricSums& sums : parts) {
      visit_numbers(sums, [&](auto& number) {
        number = static_cast<std::decay_t<decltype(number)>>(numbers[next++]);
      });
      auto& times = sums.times;
      for (double* time :
           {&times.data, &times.target, &times.forward, &times.head, &times.backward,
            &times.exchange, &times.optimizer})
        *time /= static_cast<double>(ranks.size());
    }
  }
  if (failure) std::rethrow_exception(failure);
}

std::vector<pipeline::WorkerTime> gather_times(
    const pipeline::Ranks& ranks,
    const std::vector<pipeline::WorkerTime>& own) {
  if (ranks.size() == 1) return own;
  auto text = Json::array();
  for (const auto& [worker, time] : own)
    text.push_back({worker, time.working, time.waiting, time.meeting, time.batches});
  std::vector<pipeline::WorkerTime> all;
  for (const std::string& of_rank : ranks.gather(text.dump()))
    for (const Json& entry : Json::parse(of_rank)) {
      const auto worker = entry[0].get<std::string>();
      auto same = std::find_if(
          all.begin(), all.end(), [&](const auto& other) { return other.worker == worker; });
      if (same == all.end()) same = all.insert(all.end(), {worker, {}});
      pipeline::WorkTime time;
      time.working = entry[1].get<double>();
      time.waiting = entry[2].get<double>();
      time.meeting = entry[3].get<double>();
      time.batches = entry[4].get<int64_t>();
      same->time += time;
    }
  return all;
}

}  // namespace draftsmith::train
