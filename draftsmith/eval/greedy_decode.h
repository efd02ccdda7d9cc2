// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "draftsmith/model/target.h"

namespace draftsmith::eval {

struct DecodeLimits {
  int64_t max_new_tokens = 256;
  std::vector<int64_t> stop_ids;  // an answer ends after the first of them; empty = never
};

/// The id with the largest logit of each row, the lowest id on ties.
std::vector<int64_t> pick_greedy(const torch::Tensor& logits);  // [R, V]

/// Plain greedy answers to several prompts at once, with a KV cache; prompts of different
/// lengths are padded on the right and rows that have ended leave the batch.
/// `on_step(new_tokens)` is told of the tokens that each step adds.
std::vector<std::vector<int64_t>> decode_greedily(  // new tokens only, the stop id included
    const model::Target& target,
    const std::vector<std::vector<int64_t>>& prompts,
    const DecodeLimits& limits,
    const std::function<void(int64_t)>& on_step = {});

/// Difference of the two best logits at the last position of `ids`.
double top_gap(const model::Target& target, const std::vector<int64_t>& ids);

}  // namespace draftsmith::eval
