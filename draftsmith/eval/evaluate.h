// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "draftsmith/data/prompts.h"
#include "draftsmith/eval/acceptance.h"
#include "draftsmith/eval/speculative_decode.h"

namespace draftsmith::eval {

/// Where a speculative answer first differs from the plain one, and by how little: the gap of the
/// target's two best logits there. In bfloat16 forwards of one and of K tokens round differently,
/// so gaps near zero may differ; in float32 there should be none.
struct Difference {
  int64_t prompt = 0;
  int64_t position = 0;  // in the answer
  double gap = 0;        // logits
};

struct EvalReport {
  AcceptanceReport total;
  std::map<std::string, AcceptanceReport> by_set;  // empty if all prompts share one set
  std::vector<Difference> differences;
  int64_t tokens = 0;  // new tokens of all answers, prefill token included
  double plain_tokens_per_s = 0;
  double speculative_tokens_per_s = 0;
  DecodeTimes times;  // of the speculative answers
};

/// Answers every prompt twice, one at a time: plainly and speculatively; compares the outputs and
/// counts what was accepted.
EvalReport evaluate_chain(
    const model::Target& target,
    const model::Drafter& drafter,
    const std::vector<data::Prompt>& prompts,
    const DecodeLimits& limits);

}  // namespace draftsmith::eval
