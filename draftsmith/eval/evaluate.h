// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "draftsmith/data/prompts.h"
#include "draftsmith/eval/acceptance.h"
#include "draftsmith/eval/speculative_decode.h"

namespace draftsmith::eval {

/// Where a speculative answer first differs from the plain one, and by how little: the gap of the
/// target's two best logits there. In bfloat16 forwards of one and of many tokens round differently,
/// so gaps near zero may differ; in float32 there should be none.
struct Difference {
  int64_t prompt = 0;
  int64_t position = 0;  // in the answer
  double gap = 0;        // logits
};

/// What a set of prompts gave.
struct SetReport {
  AcceptanceReport acceptance;
  int64_t tokens = 0;              // new tokens of all answers, prefill token included
  int64_t plain_tokens = 0;        // of the plain ones, which differ where drafts are drawn
  double plain_seconds = 0;        // of all answers, the best repeat of each
  double speculative_seconds = 0;  // likewise
  DecodeTimes times;               // of the speculative answers

  double plain_tokens_per_s() const { return rate(plain_tokens, plain_seconds); }
  double speculative_tokens_per_s() const { return rate(tokens, speculative_seconds); }
  /// How many times as fast as plain decoding, by tokens a second.
  double speedup() const {
    const double plain = plain_tokens_per_s();
    return plain > 0 ? speculative_tokens_per_s() / plain : 0;
  }

 private:
  static double rate(int64_t tokens, double seconds) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  }
};

struct EvalReport {
  SetReport total;
  std::map<std::string, SetReport> by_set;  // empty if all prompts share one set
  bool is_compared = false;                 // with plain answers; else `differences` says nothing
  std::vector<Difference> differences;
  std::vector<std::vector<Round>> rounds;  // per prompt
};

struct EvalOptions {
  TokenPicker picker = {};
  int64_t batch = 1;             // prompts of a set side by side; 1 is what a single user sees
  int64_t repeats = 1;           // of every answer; the fastest counts
  bool runs_plainly = true;      // else nothing is compared and plain_seconds is 0
  bool expects_identity = true;  // false where drafts are drawn: outputs then differ, rightly
  std::function<void(const RoundTrace&)> on_round = {};
};

/// Answers every prompt plainly and with each of the sources in turn, compares the outputs and
/// counts what was accepted. One report per source, of the same prompts and, for the plain side,
/// of the same runs.
std::vector<EvalReport> evaluate(
    const model::Target& target,
    const std::vector<DraftSource*>& sources,
    const std::vector<data::Prompt>& prompts,
    const DecodeLimits& limits,
    const EvalOptions& options = {});

}  // namespace draftsmith::eval
