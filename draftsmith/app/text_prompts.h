// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "draftsmith/data/prompts.h"
#include "draftsmith/formats/hf_config.h"

namespace draftsmith::app {

/// Reads prompts as token ids or, if the target's folder has a tokenizer.json, as `text`, which
/// tools/tokenize_prompts.py turns into ids first.
/// Errors: those of data::read_prompts; DataError if text cannot be tokenised.
std::vector<data::Prompt>
read_text_prompts(const std::string& path, const std::string& target_folder, int64_t vocab_size);

/// Refuses prompts whose answers would go beyond the positions that the target was made for:
/// `new_tokens`, the value of `key`, and `drafts` proposed beyond the last of them.
/// Errors: DataError for a prompt that is too long by itself, else ConfigError.
void check_prompt_lengths(
    const std::vector<data::Prompt>& prompts,
    const formats::TargetConfig& target,
    const std::string& key,
    int64_t new_tokens,
    int64_t drafts = 0);

}  // namespace draftsmith::app
