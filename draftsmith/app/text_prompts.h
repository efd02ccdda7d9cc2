// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "draftsmith/data/prompts.h"

namespace draftsmith::app {

/// Reads prompts as token ids or, if the target's folder has a tokenizer.json, as `text`, which
/// tools/tokenize_prompts.py turns into ids first.
/// Errors: those of data::read_prompts; DataError if text cannot be tokenised.
std::vector<data::Prompt>
read_text_prompts(const std::string& path, const std::string& target_folder, int64_t vocab_size);

}  // namespace draftsmith::app
