// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "draftsmith/eval/accept_drafts.h"
#include "draftsmith/eval/draft_source.h"
#include "draftsmith/eval/plain_decode.h"
#include "draftsmith/model/target.h"

namespace draftsmith::eval {

struct SpeculativeAnswer {
  std::vector<int64_t> tokens;               // new tokens, cut at the limit and after a stop id
  std::vector<std::vector<int64_t>> rounds;  // tokens that each round committed, never cut
};

struct SpeculativeResult {
  std::vector<SpeculativeAnswer> answers;  // one per prompt
  DecodeTimes times;
};

/// What happened in one round of one response.
struct RoundTrace {
  Anchor anchor;
  DraftTree tree;
  Acceptance accepted;
};

struct SpeculationOptions {
  TokenPicker picker = {};
  /// Run a round whenever the last token is before the limit, even if it adds nothing to the
  /// output, as the reference loop does.
  bool runs_raw_rounds = false;
  int64_t first_response = 0;  // number of the first prompt, for draws and traces
  std::function<void(const RoundTrace&)> on_round = {};
};

/// Lossless decoding of several prompts at once. In each round `source` proposes a tree of tokens
/// after the newest committed one, the target runs on all of them in one forward, and the path that
/// the target itself would have taken is committed, with the target's own token after it. At
/// temperature 0 the output is that of plain greedy decoding, for any drafts; so it is at any
/// temperature unless drafts are drawn, when it has the same distribution.
///
/// Prompts may differ in length; rows that have ended leave the batch.
/// Source: the generation loop of z-lab/dflash, and DDTree, arXiv 2604.12989, for trees.
SpeculativeResult decode_speculatively(
    const model::Target& target,
    DraftSource& source,
    const std::vector<std::vector<int64_t>>& prompts,
    const DecodeLimits& limits,
    const SpeculationOptions& options = {});

}  // namespace draftsmith::eval
