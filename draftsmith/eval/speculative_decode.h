// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "draftsmith/eval/greedy_decode.h"
#include "draftsmith/model/drafter.h"
#include "draftsmith/model/target.h"

namespace draftsmith::eval {

/// Seconds spent in the parts of decoding.
struct DecodeTimes {
  double prefill = 0;
  double draft = 0;   // drafter and head
  double verify = 0;  // target
};

struct SpeculativeAnswer {
  std::vector<int64_t> tokens;               // new tokens, cut at the limit and after a stop id
  std::vector<std::vector<int64_t>> rounds;  // tokens that each round committed, never cut
  DecodeTimes times;
};

/// Lossless greedy decoding of one prompt: each round the drafter proposes K - 1 tokens after the
/// newest committed one, the target runs on them in one forward, and the longest matching prefix
/// plus the target's own next token is committed. Both caches are cut back to what was accepted.
///
/// `runs_raw_rounds`: run a round whenever the last token is before the limit, even if it adds
/// nothing to the output, as the reference loop does. Source: the generation loop of z-lab/dflash.
SpeculativeAnswer decode_chain(
    const model::Target& target,
    const model::Drafter& drafter,
    const std::vector<int64_t>& prompt,
    const DecodeLimits& limits,
    bool runs_raw_rounds = false);

}  // namespace draftsmith::eval
