// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace draftsmith::data {

struct Prompt {
  std::vector<int64_t> ids;
  std::string set;  // name of the set it belongs to; may be empty
};

/// Reads JSON lines, each an object with `input_ids` (token ids) and optionally `set`.
/// Errors: DataError naming the line for anything else, an empty prompt or an id outside the
/// vocabulary; or if there is no prompt at all.
std::vector<Prompt> read_prompts(const std::filesystem::path& path, int64_t vocab_size);

}  // namespace draftsmith::data
