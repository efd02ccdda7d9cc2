// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace draftsmith::eval {

/// One verify round of a response: how many drafts matched before the first miss, and how many
/// tokens of the round are in the final output (the target's own token included).
struct Round {
  int64_t accepted = 0;
  int64_t emitted = 0;
};

/// Counts the rounds of one response as `eval` reports them: a round is cut at the first stop id
/// and at the limit, and a round that adds nothing is not counted. The prefill token is neither
/// a token nor a round. `raw[i]` holds the tokens that round i committed (drafts, then the
/// target's token).
std::vector<Round> count_emitted(
    const std::vector<std::vector<int64_t>>& raw,
    int64_t tokens_left,  // max_new_tokens - 1: what may follow the prefill token
    const std::vector<int64_t>& stop_ids);

struct Interval {
  double low = 0;
  double high = 0;
};

/// Acceptance of a set of responses. The acceptance length is the pooled value: all emitted
/// tokens over all rounds.
struct AcceptanceReport {
  int64_t responses = 0;
  int64_t rounds = 0;
  int64_t tokens = 0;              // emitted, without prefill tokens
  double pooled = 0;               // tokens / rounds
  double mean_per_response = 0;    // mean of tokens / rounds over responses with a round
  Interval pooled_95;              // bootstrap over responses
  std::vector<double> by_slot;     // [K-1] share of rounds whose drafts 1..k all matched
  std::vector<int64_t> histogram;  // [K+1] rounds by emitted tokens
};

/// `responses` may hold responses without rounds. The bootstrap is seeded: same input, same
/// interval.
AcceptanceReport report_acceptance(
    const std::vector<std::vector<Round>>& responses,
    int64_t block_size);

/// How much longer the right side's pooled acceptance length is than the left side's on the same
/// prompts, with the interval of a bootstrap over prompts: each draw takes both answers of a prompt,
/// so that what makes a prompt easy for both cancels.
struct PairedDifference {
  double value = 0;
  Interval interval_95;
};

/// Both sides have one entry per prompt, in the same order.
PairedDifference compare_acceptance(
    const std::vector<std::vector<Round>>& left,
    const std::vector<std::vector<Round>>& right);

}  // namespace draftsmith::eval
