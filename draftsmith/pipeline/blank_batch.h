// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <torch/types.h>

#include "draftsmith/pipeline/batch_feed.h"

namespace draftsmith::pipeline {

/// Of a batch that only starts threads and libraries.
constexpr int64_t kBlankTokens = 64;

/// Token ids of 0 in the fewest rows of at most `max_length` tokens (0 = any number) that hold
/// `tokens`, less than one for each row left out.
torch::Tensor make_blank_rows(int64_t tokens, int64_t max_length);  // [B, S] int64

/// A batch of made-up contents, for warming up: the states are 0, on the drafter's device, and
/// every block is kept and has labels. Padded to exactly this many tokens and blocks. `ends` embeds.
TrainBatch make_blank_batch(
    const model::Target& ends,
    const BatchRecipe& recipe,
    int64_t tokens,
    int64_t blocks);

}  // namespace draftsmith::pipeline
