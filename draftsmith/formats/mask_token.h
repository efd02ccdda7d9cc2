// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace draftsmith::formats {

struct MaskToken {
  int64_t id = -1;        // -1: nothing usable was found
  std::string source;     // for people: where the id comes from
  bool is_risky = false;  // the row means something else to the target (pad, eos, unk)
};

/// The token that stands for "predict me" when no setting names one: the tokenizer's mask token,
/// else the first embedding row that the tokenizer does not use, else pad, eos or unk.
/// Source: the order of SpecForge's training/model_utils.py.
MaskToken choose_mask_token(const std::filesystem::path& folder, int64_t vocab_size);

}  // namespace draftsmith::formats
