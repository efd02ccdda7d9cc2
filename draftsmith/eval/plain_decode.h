// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "draftsmith/eval/token_picker.h"
#include "draftsmith/model/target.h"

namespace draftsmith::eval {

struct DecodeLimits {
  int64_t max_new_tokens = 256;
  std::vector<int64_t> stop_ids;  // an answer ends after the first of them; empty = never
};

/// Prompts side by side, padded on the right with 0: [B, longest].
torch::Tensor pad_prompts(const std::vector<std::vector<int64_t>>& prompts);

/// Whether an answer is complete: it holds a stop id or has reached the limit.
bool has_ended(const std::vector<int64_t>& answer, const DecodeLimits& limits);

/// Plain answers to several prompts at once, with a KV cache; prompts of different lengths are
/// padded on the right and rows that have ended leave the batch. Prompt i is response
/// `first_response` + i for the picker's draws. `on_step(new_tokens)` is told of the tokens that
/// each step adds.
std::vector<std::vector<int64_t>> decode_plainly(  // new tokens only, the stop id included
    const model::Target& target,
    const std::vector<std::vector<int64_t>>& prompts,
    const DecodeLimits& limits,
    const TokenPicker& picker = {},
    int64_t first_response = 0,
    const std::function<void(int64_t)>& on_step = {});

/// Difference of the two best logits at the last position of `ids`.
double top_gap(const model::Target& target, const std::vector<int64_t>& ids);

}  // namespace draftsmith::eval
